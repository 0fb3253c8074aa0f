"""What a state dict may hold: a look at each tensor before a module takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import InputError
from fxquant.plan.spec import QScheme

_FLOAT32 = torch.finfo(torch.float32)

WHERE = "the file may be damaged, or of a model that was quantized otherwise: convert as it was, then load"


def check_qparams(state: Mapping[str, Any], scale: str, zero_point: str, scheme: QScheme) -> None:
    """Refuse scales and zero points that no grid of that scheme has; ``scale`` and ``zero_point`` are their keys.

    Raises:
        InputError: the message names the key.
    """
    steps = scheme.quant_max - scheme.quant_min
    largest = _FLOAT32.max / steps
    if (values := _numbers(state, scale)) is not None:
        bad = ~((values >= _FLOAT32.smallest_normal) & (values <= largest))
        expected = f"{_FLOAT32.smallest_normal:.3g} to {largest:.3g}, real units per step"
        hint = "the state was saved before calibration" if bool(values.isnan().any()) else WHERE
        _refuse("the scale of a grid is unusable", scale, values, bad, expected, hint)
    if (values := _numbers(state, zero_point)) is not None:
        if scheme.float_qparams:
            _refuse("a zero point is not finite", zero_point, values, ~values.isfinite(), "numbers of steps", WHERE)
            return
        bad = ~((values >= scheme.quant_min) & (values <= scheme.quant_max) & (values == values.round()))
        expected = f"whole numbers from {scheme.quant_min} to {scheme.quant_max}, for {scheme}"
        _refuse("a zero point is no step of its grid", zero_point, values, bad, expected, WHERE)


def check_integers(state: Mapping[str, Any], key: str, dtype: torch.dtype, scheme: QScheme | None = None) -> None:
    """Refuse stored integers of another dtype, or that a grid has not.

    Raises:
        InputError: the message names the key.
    """
    value = state.get(key)
    if not isinstance(value, Tensor) or value.is_meta:
        return
    if value.dtype != dtype:
        raise InputError(
            "a state holds no integers where a weight is stored", at=key, got=value.dtype, expected=dtype, hint=WHERE
        )
    if scheme is not None:
        bad = (value < scheme.quant_min) | (value > scheme.quant_max)
        expected = f"{scheme.quant_min} to {scheme.quant_max}, for {scheme}"
        _refuse("a stored weight lies outside of its grid", key, value, bad, expected, WHERE)


def check_finite(state: Mapping[str, Any], *keys: str) -> None:
    """Refuse NaN, infinite and complex values.

    Raises:
        InputError: the message names the key.
    """
    for key in keys:
        if (values := _numbers(state, key)) is not None:
            _refuse(
                "a state holds values that are not finite", key, values, ~values.isfinite(), "finite numbers", WHERE
            )


def check_range(state: Mapping[str, Any], *keys: str) -> None:
    """Refuse ends of ranges that are NaN or complex; an infinite one has seen nothing yet.

    Raises:
        InputError: the message names the key.
    """
    for key in keys:
        if (values := _numbers(state, key)) is not None:
            _refuse("a state holds a range that is NaN", key, values, values.isnan(), "numbers", WHERE)


def _numbers(state: Mapping[str, Any], key: str) -> Tensor | None:
    """float64; None where the state has no such tensor: whether it may lack one is not asked here."""
    value = state.get(key)
    if not isinstance(value, Tensor) or value.is_meta:
        return None
    if value.is_complex():
        raise InputError("a state holds complex values", at=key, got=value.dtype, expected="real numbers", hint=WHERE)
    return value.detach().double()


def _refuse(what: str, key: str, values: Tensor, bad: Tensor, expected: str, hint: str) -> None:
    if bool(bad.any()):
        first = values[bad].flatten()[0].item()
        count = int(bad.sum())
        more = f", and {count - 1} more of {values.numel()}" if count > 1 else ""
        raise InputError(what, at=key, got=f"{first:g}{more}", expected=expected, hint=hint)
