"""Refuses what no entry of a model can be, by the key in the state dict: its kind, its shape, its values."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import is_tensor_like

from fxquant.errors import FxQuantError, StateError
from fxquant.graph.inputs import describe_value, how_to_tensor
from fxquant.graph.query import is_strided
from fxquant.plan.spec import QScheme

_FLOAT32 = torch.finfo(torch.float32)

WHERE = "the file may be damaged, or of a model that was quantized otherwise: convert as it was, then load"

_BOOLS, _INTEGERS, _FLOATS, _COMPLEX, _QUANTIZED = "bools", "integers", "float values", "complex numbers", "torch.ao's"

_EXPECTED = {
    _BOOLS: "bool",
    _INTEGERS: "integers of any dtype",
    _FLOATS: "a floating dtype",
    _COMPLEX: "complex or floating values",
}
"""Kind of an entry of a model -> what a state may hold for it."""

_STATISTICS = ("running_mean", "running_var")
"""Buffers of a batch norm, which has both of them."""


def check_entries(model: nn.Module, state: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse entries that cannot become what the model has under their names, before any of them is copied.

    An entry is a dense tensor with values. Where the model has floating values it may have any floating dtype, and so
    for integers; values that are finite stay finite in the dtype of the model. Parameters and the statistics of batch
    norms are finite, and variances are not negative. What the state lacks is not asked for.

    Args:
        model: It is not changed.
        state: What is to be loaded.
        prefix: What stands before the names of the model in the state: empty, or a path with a dot behind it.

    Raises:
        StateError: the message names the key.
    """
    for path, module in model.named_modules(prefix=prefix.removesuffix("."), remove_duplicate=False):
        before = f"{path}." if path else ""
        has_statistics = all(module._buffers.get(name) is not None for name in _STATISTICS)
        for name, own in _entries_of(module):
            key = before + name
            if key not in state or not _is_of_kind(key, state[key], own):
                continue
            if name in module._parameters or (has_statistics and name in _STATISTICS):
                check_finite(state, key, dtype=own.dtype)
            if has_statistics and name == "running_var":
                values = state[key]
                _refuse("a variance is negative", key, values, values < 0, "0 or more", WHERE)


def _entries_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what a module itself has in its state."""
    for name, own in (*module._parameters.items(), *module._buffers.items()):
        if own is not None and name not in module._non_persistent_buffers_set:
            yield name, own


def _is_of_kind(key: str, value: Any, own: Tensor) -> bool:
    """Refuse what is no tensor of the kind that the model has; False where its values cannot be looked at."""
    if not isinstance(value, Tensor):
        if is_tensor_like(value):
            return False  # it copies itself in its own way
        raise StateError(
            "an entry of the state is no tensor",
            at=key,
            got=describe_value(value),
            expected=describe_value(own),
            hint=how_to_tensor(value) or WHERE,
        )
    if own.is_meta:
        return False
    if value.is_meta:
        raise StateError(
            "an entry of the state is on the meta device, where tensors hold no values",
            at=key,
            got=describe_value(value),
            expected=describe_value(own),
            hint="torch.load(path, map_location='cpu') reads the values",
        )
    if is_strided(own):
        _check_strided(key, value)
    _check_kind(key, value, own.dtype)
    if value.dtype != own.dtype and _kind(own) == _INTEGERS:
        kept = value.to(own.dtype).to(value.dtype)
        _refuse("an entry of the state is too large", key, value, kept != value, describe_value(own), WHERE)
    return True


def _kind(value: Tensor) -> str:
    if value.is_quantized:
        return _QUANTIZED
    return _kind_of(value.dtype)


def _kind_of(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return _BOOLS
    return _COMPLEX if dtype.is_complex else _FLOATS if dtype.is_floating_point else _INTEGERS


def _check_kind(key: str, value: Tensor, dtype: torch.dtype) -> None:
    """Refuse numbers of another kind: copying turns each scale into 1, or drops the imaginary part, unsaid."""
    given, own = _kind(value), _kind_of(dtype)
    if given == own or (given, own) == (_FLOATS, _COMPLEX):
        return
    if own == _BOOLS and value.dtype == torch.uint8:
        return  # masks were uint8 before torch had bool
    raise StateError(
        f"the state holds {given} where the model has {own}",
        at=key,
        got=describe_value(value),
        expected=_EXPECTED[own],
        hint=WHERE,
    )


@contextmanager
def naming_other_shapes(model: nn.Module, state: Mapping[str, Any]) -> Iterator[None]:
    """Name the entry of another shape where torch refuses one; modules that take any shape have taken it by then."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, FxQuantError):
            raise
        different = [
            (key, state[key], own)
            for path, module in model.named_modules(remove_duplicate=False)
            for name, own in _entries_of(module)
            if isinstance(state.get(key := f"{path}.{name}" if path else name), Tensor)
            and state[key].shape != own.shape
            and not (own.dim() == 0 and state[key].shape == (1,))  # torch takes that
        ]
        if not different:
            raise
        key, value, own = different[0]
        raise StateError(
            "an entry of the state has another shape",
            at=f"{key}{f', and {len(different) - 1} more' if len(different) > 1 else ''}",
            got=describe_value(value),
            expected=describe_value(own),
            hint="build the float model with the sizes of the saved one",
        ) from error


def check_qparams(state: Mapping[str, Any], scale: str, zero_point: str, scheme: QScheme) -> None:
    """Refuse scales and zero points that no tensor of that scheme has; ``scale`` and ``zero_point`` are their keys.

    Raises:
        StateError: the message names the key.
    """
    steps = scheme.quant_max - scheme.quant_min
    largest = _FLOAT32.max / steps
    if (values := _numbers(state, scale, torch.float32)) is not None:
        values = values.double()
        bad = ~((values >= _FLOAT32.smallest_normal) & (values <= largest))
        expected = f"a scale from {_FLOAT32.smallest_normal:.3g} to {largest:.3g}"
        hint = "the state was saved before calibration" if bool(values.isnan().any()) else WHERE
        _refuse("a scale is unusable", scale, state[scale], bad, expected, hint)
    if scheme.float_qparams:
        if (values := _numbers(state, zero_point, torch.float32)) is not None:
            bad = ~values.isfinite()
            _refuse("a zero point is not finite", zero_point, state[zero_point], bad, "numbers of steps", WHERE)
    elif (values := _numbers(state, zero_point, torch.int64)) is not None:
        bad = (values < scheme.quant_min) | (values > scheme.quant_max)
        expected = f"whole numbers from {scheme.quant_min} to {scheme.quant_max}, for {scheme}"
        _refuse("a zero point is no quantized value", zero_point, values, bad, expected, WHERE)


def with_dtypes_of_qparams(model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Cast what quantized modules hold to the dtypes that they have it in: kernels take no others."""
    cast: Any = copy.copy(state)
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            key = f"{path}.{name}" if path else name
            value = state.get(key)
            if not isinstance(value, Tensor) or buffer is None or value.dtype == buffer.dtype:
                continue
            is_quantized = hasattr(module, "_schemes") or name.endswith(("scale", "zero_point"))
            if is_quantized and _kind(value) == _kind(buffer):
                cast[key] = value.to(buffer.dtype)
    return cast


def check_integers(state: Mapping[str, Any], key: str, dtype: torch.dtype, scheme: QScheme | None = None) -> None:
    """Refuse quantized values of another dtype, or outside of the integers of a scheme.

    Raises:
        StateError: the message names the key.
    """
    if _numbers(state, key, dtype) is None:
        return
    value = state[key]
    if value.dtype != dtype:
        raise StateError(
            "the state holds another dtype where quantized values are stored",
            at=key,
            got=value.dtype,
            expected=dtype,
            hint=WHERE,
        )
    if scheme is not None:
        bad = (value < scheme.quant_min) | (value > scheme.quant_max)
        expected = f"{scheme.quant_min} to {scheme.quant_max}, for {scheme}"
        _refuse("a quantized weight lies outside of its range", key, value, bad, expected, WHERE)


def check_finite(state: Mapping[str, Any], *keys: str, dtype: torch.dtype = torch.float32) -> None:
    """Refuse what is no finite number of a dtype, or is of another kind than it.

    Raises:
        StateError: the message names the key.
    """
    for key in keys:
        if (values := _numbers(state, key, dtype)) is not None and not bool((finite := values.isfinite()).all()):
            _refuse(
                "the state holds values that are not finite",
                key,
                state[key],
                ~finite,
                f"finite {str(dtype).removeprefix('torch.')}",
                WHERE,
            )


def check_range(state: Mapping[str, Any], *keys: str) -> None:
    """Refuse ends of ranges that are NaN, or too large for float32; an infinite one has seen nothing yet.

    Raises:
        StateError: the message names the key.
    """
    for key in keys:
        if (values := _numbers(state, key, torch.float32)) is not None:
            bad = values.isnan() | (values.isinf() & state[key].isfinite())
            _refuse("the state holds a range that is no number", key, state[key], bad, "numbers of float32", WHERE)


def _numbers(state: Mapping[str, Any], key: str, dtype: torch.dtype) -> Tensor | None:
    """Return an entry as it is going to be stored; None where the state has no such tensor, which is not asked here."""
    value = state.get(key)
    if not isinstance(value, Tensor) or value.is_meta:
        return None
    _check_kind(key, value, dtype)
    _check_strided(key, value)
    return value.detach().to(dtype)


def _check_strided(key: str, value: Tensor) -> None:
    if not is_strided(value):
        got = describe_value(value)
        raise StateError("a state holds no dense tensor", at=key, got=got, expected="a dense one", hint=WHERE)


def _refuse(what: str, key: str, values: Tensor, bad: Tensor, expected: str, hint: str) -> None:
    """Refuse an entry, some of whose values are bad."""
    if bool(bad.any()):
        first = values.detach()[bad].flatten()[0].item()
        count = int(bad.sum())
        more = f", and {count - 1} more of {values.numel()}" if count > 1 else ""
        raise StateError(what, at=key, got=f"{first:g}{more}", expected=expected, hint=hint)
