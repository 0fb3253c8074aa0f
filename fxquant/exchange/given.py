"""What all formats of qparams say of one tensor."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.plan.spec import QParams, QScheme


@dataclass(frozen=True, slots=True)
class TensorQParams:
    """Holds the qparams of a tensor, and of those that share them."""

    name: str
    """Of an activation the node that gives it, of a weight its path; after ``@`` the unit, where several use it."""
    kind: Literal["activation", "weight"]
    qparams: QParams
    shared: tuple[str, ...] = ()
    """Tensors on the same qparams: the results of pools and views, and what is joined."""
    factors: tuple[float, ...] = ()
    """What the scale of each of them is multiplied with; 1 but for products with a number."""


@dataclass(frozen=True, slots=True)
class Means:
    """Holds the sums of the channels of a value, and how many values were summed in each."""

    total: tuple[float, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Given:
    """Holds what a file says of one tensor. ``None``: it does not say so, and what was planned holds."""

    name: str
    scale: Any
    """Numbers, in lists as the granularity wants."""
    zero_point: Any
    bits: int
    signed: bool
    """The sign of the quantized values that ``zero_point`` belongs to."""
    scheme: QScheme | None = None
    """All of the scheme; None: that of the plan, with these bits."""
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """Holds what a file says."""

    tensors: tuple[Given, ...]
    every_tensor: bool
    """The file names tensors that share qparams one by one."""
    joined: dict[str, tuple[float, float]]
    means: dict[str, Means]
    floats: tuple[str, ...] = ()
    """Tensors that the file says are not quantized."""


def ends_of(qparams: QParams) -> tuple[float, float]:
    """Return the smallest and the largest float value that any of the scales represents."""
    scheme, scale, zero_point = qparams.scheme, qparams.scale.double(), qparams.zero_point.double()
    low, high = ((end - zero_point) * scale for end in (scheme.quant_min, scheme.quant_max))
    return float(low.min()), float(high.max())


def short(value: float) -> float:
    """Return the number of the fewest digits that is the same float32."""
    if not math.isfinite(value):
        return value
    for digits in range(6, 10):
        number = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", number))[0] == value:
            return number
    return value


def shortened(values: Any) -> Any:
    """``short`` of each number in lists of any depth."""
    return [shortened(value) for value in values] if isinstance(values, list) else short(values)


def numbers(values: Any, name: str, what: str, shape: Sequence[int]) -> Tensor:
    """Make a tensor of numbers in lists; a lone number stands for all of them.

    Raises:
        SpecError: they are no numbers, or are not as many as the granularity wants.
    """
    try:
        if _holds_truth_values(values):
            raise TypeError
        found = torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SpecError(
            f"the {what} of a tensor holds something that is no number", at=name, got=ascii(values)[:120]
        ) from error
    if found.dim() == 0 or (found.numel() == 1 and math.prod(shape) == 1):
        return found.reshape(()).expand(tuple(shape)).clone()
    if tuple(found.shape) != tuple(shape) and not (found.dim() == 1 and found.numel() == math.prod(shape)):
        raise SpecError(
            f"the {what} of a tensor has the wrong length",
            at=name,
            got=" x ".join(map(str, found.shape)),
            expected=" x ".join(map(str, shape)),
        )
    return found.reshape(tuple(shape))


def _holds_truth_values(values: Any) -> bool:
    return any(map(_holds_truth_values, values)) if isinstance(values, list) else isinstance(values, bool)
