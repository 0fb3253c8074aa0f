"""The framework's oneDNN operators on plain uint8 and int8 tensors, and whether this machine computes them right.

They take uint8 activations and int8 weights with zero point 0. Where the CPU has no VNNI instructions they add pairs of
products in 16 bits and saturate, so :func:`onednn_status` asks the CPU, the environment and a product that would
saturate; the Python reference runs where any of them says no.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fxquant.kernels.arithmetic import integer_range
from fxquant.kernels.conv_reference import ConvGeometry, pad
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import SETTINGS
from fxquant.settings import Settings

_SIGN = 128
"""``int8`` and ``uint8`` differ by this much: the same bits with the highest one flipped."""

_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")

_NO_ACTIVATION: tuple[str, list[float], str] = ("none", [], "")
"""Activations are limits of the output grid; those that the operator reaches by saturating cost nothing."""

_LARGE = 2**20
"""Bytes from which a copy into memory that was used before is quicker than a clone: pages are not mapped anew."""

_PACKED_SHAPES = 4
"""How many input shapes a convolution keeps packed weights for. Each costs as much memory as the weight."""


@dataclass(frozen=True, slots=True)
class OnednnStatus:
    """Whether the oneDNN operators are used, for ``python -m fxquant doctor``."""

    usable: bool
    reason: str
    """Why not; empty if usable."""


@functools.cache
def onednn_status() -> OnednnStatus:
    """Find out, once per process, whether the oneDNN operators may be used here."""
    reason = refusal(SETTINGS, os.environ)
    return OnednnStatus(usable=not reason, reason=reason)


def refusal(settings: Settings, environ: Mapping[str, str]) -> str:
    """Why the oneDNN operators are not used under these settings and this environment; empty if they are."""
    if settings.kernels == "reference":
        return "FXQUANT_KERNELS=reference"
    if settings.cpu_isa not in ("auto", "avx512_vnni", "brgemm"):
        return f"FXQUANT_CPU_ISA={settings.cpu_isa} has no VNNI, without which the oneDNN operators saturate"
    for variable in _ISA_VARIABLES:
        if environ.get(variable, "").upper() in _WITHOUT_VNNI:
            return f"{variable}={environ[variable]} has no VNNI, without which the oneDNN operators saturate"
    if not hasattr(torch.ops.onednn, "qconv_pointwise"):
        return "this build of torch has no oneDNN operators"
    if not torch.cpu._is_vnni_supported():
        return "this CPU has no VNNI, without which the oneDNN operators saturate"
    try:
        got = largest_products()
    except RuntimeError as error:
        return f"the oneDNN operators fail: {str(error).splitlines()[0]}"
    wrong = [f"{name} gives {value}" for name, value in got.items() if value != 64]
    return f"the oneDNN operators saturate: {', '.join(wrong)} where 64 is right" if wrong else ""


def largest_products() -> dict[str, int]:
    """64 products of 255 and 127, scaled to make 64, by each operator; 32 where pairs of them saturate in 16 bits."""
    grid = Epilogue(
        x_scale=1 / 255,
        weight_scale=torch.full((16,), 1 / 127, dtype=torch.float32),
        bias=None,
        y_scale=1.0,
        y_zero_point=0,
        quant_min=0,
        quant_max=255,
        dtype=torch.uint8,
    )
    pixel = ConvGeometry(
        kernel_size=(1, 1), stride=(1, 1), dilation=(1, 1), groups=1, before=(0, 0), after=(0, 0), padding_mode="zeros"
    )
    x, weight = torch.full((4, 64), 255, dtype=torch.uint8), torch.full((16, 64), 127, dtype=torch.int8)
    linear = OnednnLinear(weight, torch.uint8, 0, grid)(x)
    conv = OnednnConv(weight.reshape(16, 64, 1, 1), torch.uint8, 0, pixel, grid)(x.reshape(4, 64, 1, 1))
    return {"linear": int(linear.max()), "conv2d": int(conv.max())}


class OnednnLinear:
    """A weight matrix packed for ``onednn::qlinear_pointwise``, with everything a call needs beside its input.

    Calling it with uint8 or int8 [..., in_features] gives [..., out_features], at most one step from
    ``linear_reference`` and almost always equal. Several threads may call it.

    Args:
        weight: int8 [out_features, in_features], zero point 0.
        x_dtype: uint8 or int8: how the input is stored.
        x_zero_point: Of the input, in steps.
        epilogue: Scales, bias and output grid.
    """

    def __init__(self, weight: Tensor, x_dtype: torch.dtype, x_zero_point: int, epilogue: Epilogue) -> None:
        self._signed = x_dtype == torch.int8
        self._limits = _narrower_than_storage(epilogue)
        self._features, self._dtype = len(weight), epilogue.dtype
        self._linear = torch.ops.onednn.qlinear_pointwise.default
        self._arguments = (
            epilogue.x_scale,
            x_zero_point + (_SIGN if self._signed else 0),
            torch.ops.onednn.qlinear_prepack(weight.contiguous(), None),
            epilogue.weight_scale,
            _no_zero_points(epilogue),
            epilogue.bias,
            *_output_of(epilogue),
            *_NO_ACTIVATION,
        )

    def __call__(self, x: Tensor) -> Tensor:
        if not x.numel():
            return x.new_empty((*x.shape[:-1], self._features), dtype=self._dtype)  # the operator drops dimensions
        if self._signed:
            x = flip_sign(x)
        y = self._linear(x, *self._arguments)
        return y if self._limits is None else y.clamp_(*self._limits)


class DynamicOnednnLinear:
    """The same for inputs whose grid is known only when they come; the results are real numbers.

    Args:
        weight: int8 [out_features, in_features], zero point 0.
        weight_scale: float32 [out_features], or [1] for one scale for all.
        bias: float32 [out_features], or None.
        x_dtype: uint8 or int8: how inputs are stored.
    """

    def __init__(self, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, x_dtype: torch.dtype) -> None:
        self._moved = _SIGN if x_dtype == torch.int8 else 0
        self._linear = torch.ops.onednn.qlinear_pointwise.default
        self._arguments = (
            torch.ops.onednn.qlinear_prepack(weight.contiguous(), None),
            weight_scale,
            torch.zeros_like(weight_scale, dtype=torch.int32),
            bias,
            *(1.0, 0, torch.float32),
            *_NO_ACTIVATION,
        )

    def __call__(self, x: Tensor, x_scale: float, x_zero_point: int) -> Tensor:
        """``x`` stored [..., in_features], not empty, on that grid, to float32 [..., out_features]."""
        return self._linear(flip_sign(x) if self._moved else x, x_scale, x_zero_point + self._moved, *self._arguments)


class OnednnConv:
    """A weight for ``onednn::qconv_pointwise``, with everything a call needs beside its input.

    Calling it with uint8 or int8 [N, C_in, *spatial], and optionally a residual that broadcasts to the output, gives
    [N, C_out, *out] in channels_last order, at most one step from ``conv_reference`` and almost always equal. The
    arguments are left as they are. Several threads may call it.

    The weight is packed for each shape of input (the last few are kept): packed for another one it would be
    reordered in every call, which can take longer than the convolution.

    Args:
        weight: int8 [C_out, C_in / groups, *kernel_size], zero point 0.
        x_dtype: uint8 or int8: how the input is stored.
        x_zero_point: Of the input, in steps.
        geometry: Stride, padding, dilation, groups; 1 to 3 spatial dimensions, 1 or 2 with a residual.
        epilogue: Scales, bias and output grid.
        residual_dtype: uint8 or int8, how the residual is stored; None if there is none.
    """

    def __init__(
        self,
        weight: Tensor,
        x_dtype: torch.dtype,
        x_zero_point: int,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        residual_dtype: torch.dtype | None = None,
    ) -> None:
        self._signed = x_dtype == torch.int8
        self._x_zero_point = x_zero_point + (_SIGN if self._signed else 0)
        self._row = geometry.spatial == 1
        self._geometry = geometry.as_image() if self._row else geometry
        self._weight = (weight.unsqueeze(2) if self._row else weight).contiguous()
        self._pad_first = not geometry.pads_evenly_with_zeros
        self._epilogue = epilogue
        self._limits = _narrower_than_storage(epilogue)
        self._residual_dtype = residual_dtype
        self._adds_after = epilogue.dtype == torch.float32  # the operator adds integers to integers only
        self._flip_residual = residual_dtype is not None and residual_dtype != epilogue.dtype
        self._conv = torch.ops.onednn.qconv_pointwise.default
        self._conv_add = torch.ops.onednn.qconv2d_pointwise.binary
        self._packed: dict[torch.Size, _Packed] = {}

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._row:
            x, residual = x.unsqueeze(2), None if residual is None else residual.unsqueeze(-2)
        if self._signed:
            x = flip_sign(x)
        if self._pad_first:
            x = pad(x, self._geometry, self._x_zero_point)
        packed = self._packed.get(x.shape) or self._pack(x.shape)
        if residual is None or self._adds_after:
            y = self._conv(x, *packed.before, *packed.after)
            if residual is not None:
                y += self._epilogue.real_residual(residual)
        else:
            total = self._copied(residual, packed.output_shape)
            y = self._conv_add(x, *packed.before, total, *packed.after)
            if y.data_ptr() == total.data_ptr():  # of some versions the result is what they added into
                y = y.clone()
        if self._limits is not None:
            y.clamp_(*self._limits)
        return y.squeeze(2) if self._row else y

    def _copied(self, residual: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The operator adds into the tensor that it is given, which others may still read: give it a copy."""
        if residual.shape != shape:
            residual = residual.expand(shape)
        if self._flip_residual:
            return flip_sign(residual).contiguous(memory_format=torch.channels_last)
        if residual.numel() < _LARGE:
            return residual.clone(memory_format=torch.channels_last)
        return _SCRATCH.images(shape, residual.dtype).copy_(residual)

    def _pack(self, shape: torch.Size) -> _Packed:
        geometry, epilogue = self._geometry, self._epilogue
        padding = [0] * geometry.spatial if self._pad_first else list(geometry.before)
        walk = (list(geometry.stride), padding, list(geometry.dilation), geometry.groups)
        x = (epilogue.x_scale, self._x_zero_point)
        weight = torch.ops.onednn.qconv_prepack(self._weight, epilogue.weight_scale, *x, *walk, list(shape))
        output = _output_of(epilogue)
        add: tuple[Any, ...] = ()
        if self._residual_dtype is not None and not self._adds_after:
            shift = 0 if not self._flip_residual else _SIGN if self._residual_dtype == torch.int8 else -_SIGN
            add = (epilogue.residual_scale, epilogue.residual_zero_point + shift, "sum", 1.0)
        unpadded = replace(geometry, before=tuple(padding), after=tuple(padding))
        packed = _Packed(
            before=(*x, weight, epilogue.weight_scale, _no_zero_points(epilogue)),
            after=(epilogue.bias, *walk, *output, *add, *_NO_ACTIVATION),
            output_shape=(shape[0], self._weight.shape[0], *unpadded.output_size(shape[2:])),
        )
        if len(self._packed) >= _PACKED_SHAPES:
            self._packed.pop(next(iter(self._packed)), None)
        self._packed[shape] = packed
        return packed


class _Scratch(threading.local):
    """Memory of a thread that holds the copy of a residual while a convolution adds into it."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def images(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A channels_last tensor [N, C, H, W] of a one-byte dtype, valid until the next call."""
        count, (n, c, h, w) = math.prod(shape), shape
        if self._bytes.numel() < count:
            with torch.inference_mode(False):  # memory of inference mode could not be written outside of it
                self._bytes = torch.empty(count, dtype=torch.uint8)
        return self._bytes[:count].view(dtype).view(n, h, w, c).permute(0, 3, 1, 2)


_SCRATCH = _Scratch()


@dataclass(frozen=True, slots=True)
class _Packed:
    """The arguments of the operator for one shape of input."""

    before: tuple[Any, ...]
    """Those between the input and the residual."""
    after: tuple[Any, ...]
    output_shape: tuple[int, ...]


def flip_sign(x: Tensor) -> Tensor:
    """int8 as uint8, or uint8 as int8: the same numbers on a grid whose zero point lies 128 higher, or lower."""
    other = torch.uint8 if x.dtype == torch.int8 else torch.int8
    return (x.view(torch.uint8) ^ _SIGN).view(other)


def _output_of(epilogue: Epilogue) -> tuple[float, int, torch.dtype]:
    """Scale, zero point and dtype of the result; real numbers have no grid, which the operators want to be told."""
    if epilogue.dtype == torch.float32:
        return 1.0, 0, torch.float32
    return epilogue.y_scale, epilogue.y_zero_point, epilogue.dtype


def _no_zero_points(epilogue: Epilogue) -> Tensor:
    return torch.zeros_like(epilogue.weight_scale, dtype=torch.int32)


def _narrower_than_storage(epilogue: Epilogue) -> tuple[int, int] | None:
    """The limits that saturation to uint8 or int8 does not see to."""
    limits = (epilogue.quant_min, epilogue.quant_max)
    return None if epilogue.dtype == torch.float32 or limits == integer_range(epilogue.dtype) else limits
