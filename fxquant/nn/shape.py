"""Padding and interpolation of quantized values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.graph.query import nodes_in
from fxquant.kernels import resample2d, table
from fxquant.kernels.pool.resample2d import reference as resample2d_reference
from fxquant.kernels.quantize.quantize import reference as quantize_reference
from fxquant.kernels.table.table import table_reference
from fxquant.nn.base import SameDtypeModule, integer_limits
from fxquant.nn.quantize import Requantize
from fxquant.patterns.pattern import UnitView
from fxquant.patterns.shape import padding_value
from fxquant.plan.spec import QParams

MODES = ("linear", "bilinear", "bicubic")
"""Of ``F.interpolate``: those that work along one axis after the other, on at most two."""


class QuantizedInterpolate(SameDtypeModule):
    """``F.interpolate`` of quantized values in a mode that makes new values: ``fxquant.kernels.pool.resample2d``.

    The weights are those that torch itself gives to unit vectors, in float32.

    Args:
        size: As in ``F.interpolate``, like the next five; a call may bring its own ``size`` and ``scale_factor``.
        scale_factor: Given where ``size`` is None.
        mode: ``linear``, ``bilinear`` or ``bicubic``.
        align_corners: Whether the outermost elements keep their places.
        recompute_scale_factor: Whether the scale is taken from the sizes.
        antialias: Whether more neighbours count where the image shrinks.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 [N, C, W] in mode ``linear``, else [N, C, H, W].

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None,
        scale_factor: float | Sequence[float] | None,
        mode: str,
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
        *,
        x: QParams,
        y: QParams,
    ) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("x", x)
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.how = (align_corners, recompute_scale_factor, antialias)

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedInterpolate:
        """Build the module of a unit, from its node ``interpolation``: sizes that are computed come with each call."""
        arguments: Any = unit.nodes["interpolation"].args
        _, size, scale_factor, *how = arguments
        sizes: tuple[Any, Any] = (None, None) if nodes_in((size, scale_factor)) else (size, scale_factor)
        return cls(*sizes, *how, x=unit.qparams["x"], y=unit.qparams["y"])

    def pack(self) -> tuple[float, int, float, int, int, int]:
        """Return the qparams of both sides, and the limits of the output."""
        return (*self.numbers("x"), *self.numbers("y"), *integer_limits(self.qparams("y"), None))

    def forward(self, x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
        return self._run(resample2d, x, size, scale_factor)

    def reference(self, *inputs: Any) -> Tensor:
        return self._run(resample2d_reference, *inputs)

    def _run(self, resample: Any, x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
        if size is None and scale_factor is None:
            size, scale_factor = self.size, self.scale_factor
        image = self.take("x", x if x.dim() == 4 else x.unsqueeze(-2))
        axes = x.dim() - 2
        sizes, scales = _each(size, axes), _each(scale_factor, axes)
        taps: list[Tensor] = []
        for length, outputs, scale in zip(x.shape[2:], sizes, scales, strict=True):
            taps += taps_of(length, outputs, scale, self.mode, *self.how, x.device)
        if axes == 1:
            taps = [*taps_of(1, 1, None, self.mode, None, None, False, x.device), *taps]
        y = resample(image, *taps, *(self._packed or self.packed()))
        return y if x.dim() == 4 else y.squeeze(-2)

    def extra_repr(self) -> str:
        align_corners, _, antialias = self.how
        goal = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{goal}, mode={self.mode!r}, {align_corners=}, {antialias=}\n{super().extra_repr()}"


def _each(value: Any, axes: int) -> Sequence[Any]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * axes


@functools.lru_cache(maxsize=256)
def taps_of(
    length: int,
    outputs: int | None,
    scale: float | None,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
    antialias: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return which elements of an axis each output reads, and with which weights.

    Returns:
        int64 [outputs], the first element that is read; float32 [outputs, taps], the weights from there on.
    """
    along = {"linear": 1, "bilinear": 2, "bicubic": 2}[mode]
    units = torch.eye(length, dtype=torch.float32, device=device).reshape(1, length, *[1] * (along - 1), length)
    size = None if outputs is None else (1, outputs)[-along:]
    factor = None if scale is None else (1.0, scale)[-along:]
    columns = F.interpolate(units, size, factor, mode, align_corners, recompute_scale_factor, antialias)
    weight = columns.reshape(length, -1).T.contiguous()  # [outputs, length]
    reads = weight != 0
    places = torch.arange(length, device=device)
    first = torch.where(reads, places, length - 1).amin(1)
    last = torch.where(reads, places, 0).amax(1)
    taps = int((last - first).amax()) + 1
    start = first.clamp(max=length - taps)
    return start, weight.gather(1, start[:, None] + torch.arange(taps, device=device)).contiguous()


def interpolate(x: Tensor, *arguments: Any) -> Tensor:
    """Run ``F.interpolate`` in a mode that repeats values, of uint8 or int8; torch has it for uint8 alone."""
    return F.interpolate(x.view(torch.uint8), *arguments).view(x.dtype)


class QuantizedPad(SameDtypeModule):
    """Quantized values with a number on the sides: 0.0, which the zero point stands for, or another.

    Args:
        widths: As ``F.pad`` takes them: two for the last dimension, two for the one before it, …; below 0 they cut.
            None where every call brings its own.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output, which holds ``value`` too. The same as ``x`` where that is 0.
        value: A float value.

    Shape:
        uint8 or int8; the result has the same layout.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(self, widths: Sequence[int] | None, x: QParams, y: QParams | None = None, value: float = 0.0) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", x if y is None else y)
        self.add_same_dtype_qparams("x", x)
        self.widths = None if widths is None else [int(width) for width in widths]
        self.value = value

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedPad:
        """Build the module of a unit, from its operator ``pad``: widths that are computed come with each call."""
        node, module = unit.nodes["pad"], unit.modules.get("pad")
        widths: Any = node.args[1] if module is None else module.padding
        known = isinstance(widths, (tuple, list)) and all(isinstance(width, int) for width in widths)
        return cls(widths if known else None, unit.qparams["x"], unit.qparams["y"], float(padding_value(node)))

    def pack(self) -> tuple[int, Tensor | None]:
        x, y = self.qparams("x"), self.qparams("y")
        scheme = y.scheme
        value = torch.tensor([self.value], dtype=torch.float32, device=y.scale.device)
        filling = quantize_reference(value, y.scale, y.zero_point, scheme.quant_min, scheme.quant_max, scheme.dtype)
        same = torch.equal(x.scale, y.scale) and torch.equal(x.zero_point, y.zero_point) and x.scheme == scheme
        return int(filling), None if same else Requantize(x, y).pack()[0]

    def forward(self, x: Tensor, widths: Sequence[int] | None = None) -> Tensor:
        filling, entries = self._packed or self.packed()
        on_qparams = x if entries is None else table(x, entries)
        return F.pad(on_qparams, list(widths or self.widths or ()), value=filling)

    def reference(self, *inputs: Any) -> Tensor:
        x, *given = inputs
        widths = given[0] if given else self.widths
        filling, entries = self.packed()
        on_qparams = x if entries is None else table_reference(x, entries)
        return F.pad(on_qparams, list(widths or ()), value=filling)

    def extra_repr(self) -> str:
        value = "" if self.value == 0 else f"value={self.value}, "
        return f"{self.widths or 'computed widths'}, {value}{super().extra_repr()}"
