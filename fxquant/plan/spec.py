"""The vocabulary: what a quantized tensor is. Pure data; imports nothing from fxquant but errors."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fxquant.errors import SpecError

_FLOAT32 = torch.finfo(torch.float32)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether a value is a number. A bool counts as none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: float) -> bool:
    """Tell whether a number is finite and has no fraction."""
    return math.isfinite(value) and value == int(value)


def check_number(name: str, value: Any, fits: Callable[[Any], bool], expected: str) -> None:
    """Refuse an argument that is no number, or that does not fit.

    Raises:
        SpecError: the message shows the value, and its type where that is what is wrong.
    """
    if not (is_number(value) and fits(value)):
        shown = value if is_number(value) else f"{value!r} (a {type(value).__name__})"
        raise SpecError(f"{name} is out of range", got=shown, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class QScheme:
    """Kind of affine quantization, ``x = (q - zero_point) * scale``, before scale and zero point are known."""

    bits: int = 8
    """Width of a quantized value in bits, 2 to 16."""
    signed: bool = True
    """Quantized values start at ``-2**(bits-1)`` (True) or at 0 (False)."""
    symmetric: bool = False
    """True holds zero_point at the middle of the integers: 0 if signed, 128 for uint8."""
    axis: int | None = None
    """None: one scale for the tensor. k: one scale per index of dimension k; negative counts from the end."""
    group_size: int | None = None
    """With ``axis``: one scale per run of this many values along the dimension after ``axis``."""
    limits: tuple[int, int] | None = None
    """Narrows the integers to these inclusive bounds (``reduce_range``, -127 to 127). None: all of ``bits``."""
    float_qparams: bool = False
    """True: zero_point is a float32 in steps, and the range is not widened to hold 0 (embeddings)."""
    power_of_two: bool = False
    """True: scales that observers choose are powers of two, for hardware that shifts where others multiply."""

    def __post_init__(self) -> None:
        check_number("bits", self.bits, lambda bits: _is_whole(bits) and 2 <= bits <= 16, "a whole number from 2 to 16")
        if self.axis is not None and not _is_whole(self.axis):
            raise SpecError("axis is no dimension", got=repr(self.axis), expected="a whole number or None")
        if self.group_size is not None and (self.axis is None or not _is_whole(self.group_size) or self.group_size < 1):
            raise SpecError(
                "group_size needs an axis and at least one value per group",
                got=f"group_size={self.group_size!r}, axis={self.axis}",
            )
        if self.float_qparams and (self.axis is None or self.symmetric):
            raise SpecError(
                "a zero point that is a float belongs to affine quantization per channel",
                got=f"float_qparams=True, symmetric={self.symmetric}, axis={self.axis}",
                expected="symmetric=False, and an axis",
            )
        if self.power_of_two and self.float_qparams:
            raise SpecError(
                "scales that are powers of two belong to integer zero points",
                got="power_of_two=True, float_qparams=True",
            )
        if self.limits is not None:
            self._check_limits(self.limits)

    def _check_limits(self, limits: tuple[int, int]) -> None:
        low, high = self.full_range
        pair = isinstance(limits, tuple) and len(limits) == 2 and all(map(_is_whole, limits))
        if not pair or not low <= limits[0] < limits[1] <= high:
            kind = "a signed" if self.signed else "an unsigned"
            raise SpecError(
                f"quant_min and quant_max do not fit {kind} integer of {self.bits} bits",
                got=f"[{limits[0]}, {limits[1]}]" if pair else repr(limits),
                expected=f"quant_min < quant_max, both inside [{low}, {high}]",
            )

    @property
    def full_range(self) -> tuple[int, int]:
        """First and last integer of ``bits``, whatever ``limits`` says."""
        low = -(2 ** (self.bits - 1)) if self.signed else 0
        return low, low + 2**self.bits - 1

    @property
    def quant_min(self) -> int:
        """Return the smallest quantized value, inclusive."""
        return (self.limits or self.full_range)[0]

    @property
    def quant_max(self) -> int:
        """Return the largest quantized value, inclusive."""
        return (self.limits or self.full_range)[1]

    @property
    def dtype(self) -> torch.dtype:
        """Return the torch dtype that stores the integers: uint8, int8, int16; int32 if unsigned and over 8 bits."""
        if self.bits <= 8:
            return torch.int8 if self.signed else torch.uint8
        return torch.int16 if self.signed else torch.int32

    def __str__(self) -> str:
        sign, kind = ("int" if self.signed else "uint"), ("symmetric" if self.symmetric else "affine")
        where = "per tensor" if self.axis is None else f"per channel (axis {self.axis})"
        if self.group_size is not None:
            where = f"per group of {self.group_size} (axis {self.axis})"
        span = f" [{self.quant_min}, {self.quant_max}]" if self.limits else ""
        powers = ", powers of two" if self.power_of_two else ""
        return f"{sign}{self.bits}{span} {kind} {where}{powers}"


@dataclass(frozen=True, slots=True, eq=False)
class QParams:
    """Scale and zero point of a tensor: the measured half of its quantization.

    ``scale``: float32 [C] (or [C, groups]), > 0: the float value of one step. C is 1 per tensor. NaN: not calibrated.
    ``zero_point``: int32 of the same shape, in steps (float32 if ``scheme.float_qparams``).

    Raises:
        SpecError: shapes or dtypes are others. Values are not looked at: that would wait for a GPU.
    """

    scheme: QScheme
    scale: Tensor
    zero_point: Tensor

    def __post_init__(self) -> None:
        if self.scale.shape != self.zero_point.shape:
            raise SpecError(
                "scale and zero_point have different shapes",
                got=f"scale {tuple(self.scale.shape)}, zero_point {tuple(self.zero_point.shape)}",
            )
        self._check_shape()
        self._check_dtype("scale", self.scale, torch.float32)
        self._check_dtype("zero_point", self.zero_point, torch.float32 if self.scheme.float_qparams else torch.int32)

    def _check_shape(self) -> None:
        shape = tuple(self.scale.shape)
        if self.scheme.axis is None:
            fits, expected = shape == (1,), "(1,)"
        elif self.scheme.group_size is None:
            fits, expected = len(shape) == 1, "(channels,)"
        else:
            fits, expected = len(shape) == 2, "(channels, groups)"
        if not fits:
            raise SpecError(f"scale and zero_point have no shape of {self.scheme}", got=shape, expected=expected)

    def _check_dtype(self, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
        if tensor.dtype != dtype:
            raise SpecError(f"{name} has the wrong dtype", got=tensor.dtype, expected=dtype)

    def scaled(self, factor: float) -> QParams:
        """Return qparams by which the same integers stand for ``factor`` times as much, as far as float32 reaches."""
        if factor == 1:
            return self
        return replace(self, scale=(self.scale * factor).clamp(_FLOAT32.smallest_normal, _FLOAT32.max))

    def same_qparams(self, other: QParams) -> bool:
        """Tell whether a quantized value stands for the same float value under both qparams."""
        return (
            self.scheme.dtype == other.scheme.dtype
            and (self.scheme.quant_min, self.scheme.quant_max) == (other.scheme.quant_min, other.scheme.quant_max)
            and (self.scheme.axis, self.scheme.group_size) == (other.scheme.axis, other.scheme.group_size)
            and torch.equal(self.scale, other.scale)
            and torch.equal(self.zero_point, other.zero_point)
        )


@dataclass(frozen=True, slots=True)
class Clamp:
    """A piecewise-linear activation, in float values: ReLU is (0, None), ReLU6 is (0, 6), hardtanh is (-1, 1)."""

    low: float | None = None
    high: float | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Clamp float values. Without bounds ``x`` itself comes back."""
        return x if self.low is None and self.high is None else x.clamp(self.low, self.high)

    @property
    def limits(self) -> tuple[float, float]:
        """Return both bounds, infinite where there is none. The upper one counts where the lower one is above it."""
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        return min(low, high), high


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Names one tensor of a model. A name and not a Node: it survives deepcopy, pickling and printing."""

    name: str
    """The producing node of an activation; of a weight the qualified name and the unit's root, joined by ``@``."""
    kind: Literal["activation", "parameter", "call", "mean"] = "activation"
    """``call``: a value as one unit quantizes it, in each call anew; the name is that of value and unit.
    ``mean``: the means of a value over all dimensions but one; the name is that of value and dimension."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Observed:
    """Measure this tensor's range, and choose its qparams from it."""

    observer: Callable[[], Any]
    """Makes a fresh observer (a class of ``fxquant.observers`` or what its ``with_args`` gives)."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The qparams are known beforehand: sigmoid, softmax."""

    qparams: QParams


@dataclass(frozen=True, slots=True)
class SharedWith:
    """The tensor has the qparams of another one: max-pool, reshape, concatenation."""

    source: TensorRef
    factor: float = 1.0
    """What the source's scale is multiplied with, since the values are: then integers and zero points are the same."""


@dataclass(frozen=True, slots=True)
class Handled:
    """The handler that a user registered for the pattern knows the qparams."""


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Each call chooses the qparams, from the smallest to the largest value of the tensor that it gets."""

    scheme: QScheme
    eps: float = _FLOAT32.smallest_normal
    """Smallest scale."""
    per: Literal["tensor", "token"] = "tensor"
    """``token``: each row, the values along the last dimension, has a scale and a zero point of its own range."""

    def __post_init__(self) -> None:
        if self.scheme.power_of_two:
            raise SpecError(
                "what each call measures gets scales of any value",
                got=str(self.scheme),
                expected="power_of_two=False, or an observer that calibration shows the values to",
            )

    def __str__(self) -> str:
        return str(self.scheme).replace("per tensor", "per token") if self.per == "token" else str(self.scheme)


@dataclass(frozen=True, slots=True)
class Means:
    """A measurement without qparams: the mean of each channel of a value, to correct biases with."""

    value: str
    """Name of the node that produces it."""
    axis: int
    """Dimension that counts the channels, negative."""


QParamsPolicy = Observed | Fixed | SharedWith | Handled | Dynamic | Means


CONSTRUCTOR = "an observer class, or what its with_args(...) gives"
"""Where an observer is wanted that is made anew for each tensor."""


def checked_observer(observer: Any, role: str) -> Any:
    """Return what a constructor made, if it is an observer.

    Args:
        observer: Of any class, which needs a ``scheme`` (a ``QScheme``, or None) and ``calculate_qparams``.
        role: What the constructor was given as, for the message: ``"QConfig weight"``.

    Raises:
        SpecError: it is no observer of this package.
    """
    scheme = getattr(observer, "scheme", "")
    if not (scheme is None or isinstance(scheme, QScheme)) or not hasattr(observer, "calculate_qparams"):
        raise SpecError(
            f"{role} makes something that is no observer of fxquant",
            got=f"{type(observer).__module__}.{type(observer).__qualname__}",
            expected=f"{CONSTRUCTOR}; one of your own has a scheme (a QScheme, or None) and calculate_qparams()",
            hint="fxquant.observers has the observers of torch.ao.quantization under the same names",
        )
    return observer
