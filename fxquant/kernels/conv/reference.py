"""Integer convolution in plain torch: the definition of what every int8 convolution must give."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.kernels.epilogue import Epilogue

_CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

_LARGEST_STEP = 255
"""Largest ``|q - zero_point|`` of 8 bits, where the zero point is a quantized value."""

_EXACT_IN_FLOAT32 = 2**24
"""Whole numbers up to here are float32 values, so sums that stay below are exact in any order, with or without FMA."""

_DIRECT_FLOAT32 = platform.machine() in ("x86_64", "AMD64")
"""Where float32 convolutions on the CPU are sums of products; elsewhere a library may choose Winograd's transform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvGeometry:
    """How a convolution walks over its input; all tuples have one entry per spatial dimension."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    before: tuple[int, ...]
    """Padding at the low end of each dimension."""
    after: tuple[int, ...]
    """Padding at the high end; one more than ``before`` where ``padding="same"`` comes out odd."""
    padding_mode: str
    """``zeros``, ``reflect``, ``replicate`` or ``circular``, as ``torch.nn`` has them."""

    @classmethod
    def of(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> ConvGeometry:
        """Read the geometry of a float module."""
        reach = [step * (size - 1) for step, size in zip(conv.dilation, conv.kernel_size, strict=True)]
        if conv.padding == "same":
            before = tuple(total // 2 for total in reach)
            after = tuple(total - total // 2 for total in reach)
        elif conv.padding == "valid":
            before = after = (0,) * len(reach)
        else:
            before = after = tuple(int(size) for size in conv.padding)
        return cls(
            kernel_size=tuple(conv.kernel_size),
            stride=tuple(conv.stride),
            dilation=tuple(conv.dilation),
            groups=conv.groups,
            before=before,
            after=after,
            padding_mode=conv.padding_mode,
        )

    @property
    def spatial(self) -> int:
        """Return the number of spatial dimensions, 1 to 3."""
        return len(self.kernel_size)

    def as_image(self) -> ConvGeometry:
        """Return a one-dimensional convolution as one over images that are one pixel high."""
        return replace(
            self,
            kernel_size=(1, *self.kernel_size),
            stride=(1, *self.stride),
            dilation=(1, *self.dilation),
            before=(0, *self.before),
            after=(0, *self.after),
        )

    def output_size(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial size of the output for an input of spatial ``size``."""
        return tuple(
            (length + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for length, before, after, dilation, kernel, stride in zip(
                size, self.before, self.after, self.dilation, self.kernel_size, self.stride, strict=True
            )
        )


def pad(x: Tensor, geometry: ConvGeometry, fill: int) -> Tensor:
    """Pad the last dimensions as the geometry says; zeros are ``fill``. For any dtype: nothing is computed."""
    if not any(geometry.before) and not any(geometry.after):
        return x
    amounts = list(zip(geometry.before, geometry.after, strict=True))
    if geometry.padding_mode == "zeros":
        return F.pad(x, [side for pair in reversed(amounts) for side in pair], value=fill)
    for dim, (before, after) in enumerate(amounts, start=x.dim() - geometry.spatial):
        length = x.shape[dim]
        index = torch.arange(-before, length + after, device=x.device)
        if geometry.padding_mode == "circular":
            index = index % length
        elif geometry.padding_mode == "replicate":
            index = index.clamp(0, length - 1)
        else:
            index = index.abs()
            index = torch.where(index < length, index, 2 * (length - 1) - index)
        x = x.index_select(dim, index)
    return x


def conv_reference(
    x: Tensor,
    x_zero_point: int,
    weight: Tensor,
    weight_zero_point: Tensor,
    geometry: ConvGeometry,
    epilogue: Epilogue,
    residual: Tensor | None = None,
) -> Tensor:
    """Convolve quantized values, and requantize: every result defined to the bit.

    The sum ``a = sum((q_x - z_x) * (q_w - z_w))`` is exact (it stays below 2**31 up to a fan-in of 65793, where any
    implementation in int32 agrees); :class:`Epilogue` says what follows.

    Args:
        x: uint8 or int8 [N, C_in, *spatial]. Padding means ``x_zero_point``, which stands for 0.0.
        weight: int8 [C_out, C_in / groups, *kernel_size].
        weight_zero_point: int32 [C_out] or [1].
        geometry: Stride, padding, dilation, groups.
        epilogue: Scales, bias, the qparams of the output.
        residual: uint8 or int8 that broadcasts to the output, or None.

    Returns:
        [N, C_out, *out], of ``epilogue.dtype``.
    """
    padded = pad(x, geometry, x_zero_point)
    shape = [-1] + [1] * (geometry.spatial + 1)
    sums = exact_sums(
        padded.to(torch.int32) - x_zero_point, weight.to(torch.int32) - weight_zero_point.reshape(shape), geometry
    )
    return epilogue.apply(sums, 1, residual)


def exact_sums(x: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """Convolve whole numbers without padding, exactly: values of at most 255, and int8 weights. int32 in, float out.

    float32 is several times faster than float64, and exact while no partial sum can pass 2**24. Input channels are
    halved until that holds; what cannot be halved (groups, one channel) is convolved in float64.
    """
    convolve, channels = _CONVOLUTION[geometry.spatial], x.shape[1]
    if not channels:  # torch gives no results where there are groups of no channels
        unpadded = replace(geometry, before=(0,) * geometry.spatial, after=(0,) * geometry.spatial)
        return x.new_zeros((x.shape[0], len(weight), *unpadded.output_size(x.shape[2:])), dtype=torch.float32)
    how = (None, geometry.stride, 0, geometry.dilation, geometry.groups)
    if x.device.type == "cpu" and _DIRECT_FLOAT32:
        largest = weight.abs().sum(dim=tuple(range(1, weight.dim()))).amax().item() * _LARGEST_STEP
        if largest <= _EXACT_IN_FLOAT32:
            return convolve(x.to(torch.float32), weight.to(torch.float32), *how)
        if geometry.groups == 1 and channels > 1:
            half = channels // 2
            low = exact_sums(x[:, :half], weight[:, :half], geometry)
            return low.to(torch.float64) + exact_sums(x[:, half:], weight[:, half:], geometry)
    # A library of another device may transform instead of summing; rounding makes whole numbers of its answer again.
    return convolve(x.to(torch.float64), weight.to(torch.float64), *how).round()
