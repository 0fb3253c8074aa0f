"""Valid calls of every native operator, of many geometries: what tests of memory and hostile arguments begin with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxquant.kernels.conv.packing import pack_weight, zero_point_correction
from fxquant.kernels.linear.grouped_weight import pack_grouped
from fxquant.nn.shape import taps_of

Arguments = dict[str, Any]
Place = Callable[[Tensor], Tensor]
"""Puts a tensor where a test wants it: the same values, sizes and strides elsewhere."""

BYTES = (torch.uint8, torch.int8)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-7, -1e4, 6e4)
"""Float values that are rare and may be given."""


class Maker:
    """Random arguments of one call.

    Args:
        seed: Of all that is random.
        place: Where each tensor is to lie.
        wide: Also sizes of 0, views that begin behind the first element of their memory, random weights, scales by
            which results pass their limits, and infinite, largest and smallest values, and NaN, among the float ones.
    """

    def __init__(self, seed: int, place: Place = lambda x: x, wide: bool = False) -> None:
        self._rng = random.Random(seed)
        self._wide = wide
        self._generator = torch.Generator().manual_seed(seed)
        self._place = place

    def one(self, *values: Any) -> Any:
        return self._rng.choice(values)

    def count(self, most: int, least: int = 1) -> int:
        return self._rng.randint(least, most)

    def sizes(self, most: int, dims: int) -> list[int]:
        return [self.count(most) for _ in range(dims)]

    def size(self, most: int, least: int = 1) -> int:
        """A size that an operator takes as 0, too."""
        return 0 if self.rarely(30) else self.count(most, least)

    def shape(self, most: int, dims: int) -> list[int]:
        return [self.size(most) for _ in range(dims)]

    def seldom(self, value: int, usual: int) -> int:
        """A size whose calls take long: where many calls are made, one in four has it."""
        return usual if self._wide and self._rng.randrange(4) else value

    def rarely(self, one_in: int) -> bool:
        return self._wide and self._rng.randrange(one_in) == 0

    def put(self, x: Tensor) -> Tensor:
        return self._place(x)

    def stored(self, *sizes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        x = torch.randint(0, 256, sizes, dtype=torch.int32, generator=self._generator).to(torch.uint8).view(dtype)
        if len(sizes) in (4, 5) and self._rng.random() < 0.5:
            last = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
            x = x.contiguous(memory_format=last)
        return self.put(self._strided(x))

    def weight(self, *sizes: int) -> Tensor:
        if self._wide:
            return torch.randint(-128, 128, sizes, dtype=torch.int8, generator=self._generator)
        return torch.arange(math.prod(sizes)).mul(77).to(torch.int8).reshape(sizes)

    def real(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        x = torch.randn(sizes, generator=self._generator).to(dtype)
        if x.numel() and self.rarely(8):
            for _ in range(self.count(3)):
                x.view(-1)[self.count(x.numel() - 1, 0)] = self.one(*ODD, torch.finfo(dtype).max)
        return self.put(self._strided(x))

    def positive(self, count: int) -> Tensor:
        x = torch.rand(count, generator=self._generator) * 0.1 + 0.01
        return self.put(x * self.one(1e-9, 1e-4, 1e4, 1e9) if self.rarely(10) else x)

    def scale(self) -> float:
        """Of a result or of an input: one number."""
        return self.one(1e-12, 1e-5, 1e4, 1e9) if self.rarely(15) else 0.01 * self.count(20)

    def integers(self, count: int, most: int, dtype: torch.dtype = torch.int32, least: int = 0) -> Tensor:
        return self.put(torch.randint(least, most + 1, (count,), generator=self._generator).to(dtype))

    def _strided(self, x: Tensor) -> Tensor:
        """Mostly as it is; or transposed, every second element, or expanded."""
        way = self._rng.randint(0, 9 if self._wide else 7)
        if way == 0 and x.dim() >= 2:
            return x.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)
        if way == 1 and x.dim():
            return x.repeat_interleave(2, -1)[..., ::2]
        if way == 2 and x.dim() and x.shape[0] > 1:
            return x[:1].expand(x.shape)
        if way == 8 and x.dim():
            return torch.cat([x.narrow(-1, 0, min(1, x.shape[-1])), x], -1).narrow(-1, min(1, x.shape[-1]), x.shape[-1])
        return x


def qparams(m: Maker, prefix: str = "", dtype: torch.dtype = torch.uint8) -> Arguments:
    low = 0 if dtype != torch.int8 else -128
    return {f"{prefix}scale": m.scale(), f"{prefix}zero_point": low + m.count(255, 0)}


def output(m: Maker, dtype: torch.dtype = torch.uint8) -> Arguments:
    low = 0 if dtype != torch.int8 else -128
    return {**qparams(m, "", dtype), "quant_min": low + m.one(0, 20), "quant_max": low + m.one(255, 200)}


def products(
    m: Maker,
    weight: Tensor,
    packed: Tensor,
    residual: tuple[int, ...] | None,
    dtypes: tuple[torch.dtype, ...] = (*BYTES, torch.float32),
) -> Arguments:
    """What convolutions and linear layers take beside x and the geometry."""
    channels, dtype = len(weight), m.one(*dtypes)
    given = None if residual is None else m.stored(*residual, dtype=m.one(*BYTES))
    of_residual = qparams(m, "residual_", torch.uint8 if given is None else given.dtype)
    y = output(m, dtype)
    return {
        "weight": m.put(packed), "zero_point_correction": m.put(zero_point_correction(weight, torch.uint8, 9)),
        "scale": m.positive(channels), "bias": m.real(channels), "residual": given, **of_residual,
        "y_scale": y["scale"], "y_zero_point": y["zero_point"],
        "quant_min": y["quant_min"], "quant_max": y["quant_max"], "dtype": dtype,
    }  # fmt: skip


def convolution(m: Maker, spatial: int) -> Arguments:
    groups = m.one(1, 1, 2, 5, 17)
    depth, channels = (groups, groups) if m.one(True, False) else (groups * m.count(9), groups * m.one(1, 3, 17))
    kernel, stride, dilation = m.sizes(3, spatial), m.sizes(3, spatial), m.sizes(2, spatial)
    return convolution_of(m, (depth, channels, groups), kernel, stride, dilation)


def depthwise(m: Maker) -> Arguments:
    """Windows and channels for which there are loops of their own, and others."""
    channels = m.one(2, 16, 24, 32, 40, 64, 72, 96, 112, m.count(150, 2))
    side, stride, dilation = m.one(3, 3, 5, 7, m.count(9)), m.one(1, 1, 2, 3), m.one(1, 1, 1, 2)
    kernel = m.one([side, side], [m.count(5), side])
    return convolution_of(
        m, (channels, channels, channels), kernel, [stride, m.one(stride, 1, 2)], [dilation, dilation]
    )


def unpadded(m: Maker) -> Arguments:
    """Windows that lie in the input, of whole K groups: tiles read them in place."""
    groups = m.one(1, 1, 2)
    counts = (groups * m.one(4, 20, 64, 68, 100), groups * m.one(5, 16, 33, 70), groups)
    return convolution_of(m, counts, *(m.sizes(most, 2) for most in (3, m.one(1, 3), 2)), padded=False)


def part_of_the_channels(m: Maker) -> Arguments:
    """On a part of the channels of a tensor, which some loops read where it lies."""
    given = m.one(depthwise, unpadded, lambda m: convolution(m, 2))(m)
    x, before = given["x"], m.count(20, 0)
    sizes = (x.shape[0], before + x.shape[1] + m.count(70, 0), *x.shape[2:])
    around = torch.full(sizes, 77, dtype=x.dtype).contiguous(memory_format=torch.channels_last)
    part = around[:, before : before + x.shape[1]]
    return {**given, "x": m.put(part.copy_(x))}


def convolution_of(
    m: Maker,
    counts: tuple[int, int, int],
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
    padded: bool = True,
) -> Arguments:
    """Of so many input channels, output channels and groups, on an input that is a little larger than the window."""
    (depth, channels, groups), spatial = counts, len(kernel)
    padding = [m.count(2, 0) if padded else 0 for _ in range(2 * spatial)]
    reach = [step * (k - 1) + 1 for k, step in zip(kernel, dilation, strict=True)]
    size = [max(1, least - sum(padding[2 * i : 2 * i + 2])) + m.count(6, 0) for i, least in enumerate(reach)]
    out = [(size[i] + sum(padding[2 * i : 2 * i + 2]) - reach[i]) // stride[i] + 1 for i in range(spatial)]
    batch = m.size(2)
    weight = m.weight(channels, depth // groups, *kernel)
    x = m.stored(batch, depth, *size, dtype=m.one(*BYTES))
    residual = m.one(None, (batch, channels, *out))
    rest = products(m, weight, pack_weight(weight, groups), residual)
    walk = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return {"x": x, "x_zero_point": qparams(m, "", x.dtype)["zero_point"], **rest, **walk}


def linear(m: Maker) -> Arguments:
    depth, channels = m.size(70), m.one(1, 5, 16, 33, 70)
    lead = m.one([], [m.size(3)], [2, m.size(30)])
    weight = m.weight(channels, depth)
    x = m.stored(*lead, depth, dtype=m.one(*BYTES))
    residual = m.one(None, (*lead, channels))
    return {
        "x": x,
        "x_zero_point": qparams(m, "", x.dtype)["zero_point"],
        **products(m, weight, pack_weight(weight), residual),
    }


def weight_only_linear(m: Maker) -> Arguments:
    groups, channels, bits = m.one(1, 1, 2, 7), m.one(1, 5, 16, 33, 70), m.one(4, 8)
    size = m.one(m.count(20), m.count(20), 32, 150)
    lead = m.one([], [m.size(3)], [2, m.size(20)])
    weight = m.weight(channels, groups * size)
    padded = -(-channels // 16) * 16
    scale, points = m.real(groups, padded), m.stored(groups, padded, dtype=torch.int8)
    return {
        "x": m.real(*lead, groups * size), "weight": m.put(pack_grouped(weight, groups, bits)), "scale": scale,
        "zero_point": m.one(None, points), "bias": m.real(channels), "bits": bits,
    }  # fmt: skip


def per_token_linear(m: Maker) -> Arguments:
    depth, channels = m.size(70), m.one(1, 5, 16, 33, 70)
    lead = m.one([], [m.size(3)], [2, m.size(30)])
    weight = m.weight(channels, depth)
    x, rows = m.stored(*lead, depth, dtype=m.one(*BYTES)), math.prod(lead)
    low = 0 if x.dtype == torch.uint8 else -128
    return {
        "x": x, "x_scale": m.positive(rows), "x_zero_point": m.integers(rows, low + 255, least=low),
        "weight": m.put(pack_weight(weight)), "zero_point_correction": m.put(zero_point_correction(weight, x.dtype, 0)),
        "weight_sums": m.put(weight.sum(1, dtype=torch.int32)), "scale": m.positive(channels), "bias": m.real(channels),
    }  # fmt: skip


def dynamic_linear(m: Maker) -> Arguments:
    depth, channels, dtype = m.size(70), m.one(1, 5, 16, 33, 70), m.one(*BYTES)
    lead = m.one([], [m.size(3)], [2, m.size(30)], [m.seldom(1500, 5), 1])
    weight, low = m.weight(channels, depth), 0 if dtype == torch.uint8 else -128
    return {
        "x": m.real(*lead, depth, dtype=m.one(*FLOATS)), "per_token": m.one(True, False), "eps": 1e-30,
        "quant_min": low + m.one(0, 20), "quant_max": low + m.one(255, 200), "middle": m.one(None, low + 128),
        "dtype": dtype, "weight": m.put(pack_weight(weight)),
        "zero_point_correction": m.put(zero_point_correction(weight, dtype, 0)),
        "weight_sums": m.put(weight.sum(1, dtype=torch.int32)), "scale": m.positive(channels), "bias": m.real(channels),
        "low": m.one(-math.inf, 0.0), "high": m.one(math.inf, 6.0),
    }  # fmt: skip


def quantize_per_token(m: Maker) -> Arguments:
    dtype = m.one(*BYTES)
    low = 0 if dtype == torch.uint8 else -128
    x = m.real(*m.shape(5, m.count(2, 0)), m.size(70), dtype=m.one(*FLOATS))
    return {
        "x": x, "eps": 1e-30, "quant_min": low + m.one(0, 20), "quant_max": low + m.one(255, 200),
        "middle": m.one(None, low + 128), "dtype": dtype,
    }  # fmt: skip


def matmul(m: Maker) -> Arguments:
    rows, depth, columns = m.size(20), m.size(70), m.size(40)
    a, b = m.stored(2, rows, depth, dtype=m.one(*BYTES)), m.stored(m.one(1, 2), depth, columns, dtype=m.one(*BYTES))
    dtype = m.one(*BYTES, torch.float32)
    y = output(m, dtype)
    return {
        "a": a, **qparams(m, "a_", a.dtype), "b": b, **qparams(m, "b_", b.dtype), "y_scale": y["scale"],
        "y_zero_point": y["zero_point"], "quant_min": y["quant_min"], "quant_max": y["quant_max"], "dtype": dtype,
    }  # fmt: skip


def pair(m: Maker) -> Arguments:
    dtype, sizes = m.one(*BYTES), m.shape(9, m.count(4))
    other = [m.one(1, size) for size in sizes][m.count(len(sizes), 0) :]
    a, b = m.stored(*sizes, dtype=dtype), m.stored(*other, dtype=dtype)
    return {"a": a, **qparams(m, "a_", dtype), "b": b, **qparams(m, "b_", dtype), **output(m, dtype)}


def prelu(m: Maker) -> Arguments:
    dtype, channels = m.one(*BYTES), m.count(20)
    x = m.stored(2, channels, 3, m.size(9), dtype=dtype)
    slope = m.real(m.one(channels, 1), 1, 1)
    return {"x": x, **qparams(m, "x_", dtype), "slope": slope, **output(m, dtype)}


def cat(m: Maker) -> Arguments:
    dtype, dim, count = m.one(*BYTES), m.count(3, 0), m.count(4)
    sizes = m.shape(7, 4)
    parts = [m.stored(*(m.size(40) if d == dim else size for d, size in enumerate(sizes)), dtype=dtype)
             for _ in range(count)]  # fmt: skip
    all_qparams = [qparams(m, "", dtype) for _ in parts]
    return {
        "tensors": parts, "scales": [each["scale"] for each in all_qparams],
        "zero_points": [each["zero_point"] for each in all_qparams], "dim": dim, **output(m, dtype),
    }  # fmt: skip


def image(m: Maker) -> Tensor:
    return m.stored(m.size(2), m.one(1, 3, 16, 33), m.count(9, 4), m.count(9, 4), dtype=m.one(*BYTES))


def max_pool2d(m: Maker) -> Arguments:
    kernel = m.sizes(3, 2)
    padding = [size // 2 for size in kernel]
    return {
        "x": image(m), "kernel_size": kernel, "stride": m.sizes(3, 2), "padding": padding, "dilation": [1, m.count(2)],
        "ceil_mode": m.one(True, False),
    }  # fmt: skip


def avg_pool2d(m: Maker) -> Arguments:
    given, x = max_pool2d(m), image(m)
    del given["dilation"]
    more = {"count_include_pad": m.one(True, False), "divisor_override": m.one(None, 3)}
    return {**given, "x": x, **more, **qparams(m, "x_", x.dtype), **output(m, x.dtype)}


def adaptive_avg_pool2d(m: Maker) -> Arguments:
    x = image(m)
    return {"x": x, "output_size": m.sizes(4, 2), **qparams(m, "x_", x.dtype), **output(m, x.dtype)}


def mean(m: Maker) -> Arguments:
    x = image(m)
    dim = m.one([2, 3], [1], [0, 2], [3], [-1, 1])
    return {"x": x, "dim": dim, "keepdim": m.one(True, False), **qparams(m, "x_", x.dtype), **output(m, x.dtype)}


def resample2d(m: Maker) -> Arguments:
    x = image(m)
    axes = [
        taps_of(size, m.count(12), None, "bilinear", False, None, m.one(True, False), torch.device("cpu"))
        for size in x.shape[2:]
    ]
    (row_start, row_weight), (column_start, column_weight) = [(m.put(s), m.put(w)) for s, w in axes]
    return {
        "x": x, "row_start": row_start, "row_weight": row_weight, "column_start": column_start,
        "column_weight": column_weight, **qparams(m, "x_", x.dtype), **output(m, x.dtype),
    }  # fmt: skip


def rows(m: Maker) -> Tensor:
    dtype = m.one(*BYTES, torch.float32)
    sizes = (m.size(5), m.size(70))
    return m.real(*sizes) if dtype == torch.float32 else m.stored(*sizes, dtype=dtype)


def softmax(m: Maker) -> Arguments:
    dtype = m.one(*BYTES)
    return {"x": rows(m), "x_scale": 0.05, "safe": m.one(True, False), **output(m, dtype), "dtype": dtype}


def layer_norm(m: Maker) -> Arguments:
    x, dtype = rows(m), m.one(*BYTES)
    weight, bias = m.real(x.shape[-1]), m.real(x.shape[-1])
    return {"x": x, "weight": weight, "bias": bias, "eps": 1e-5, "x_scale": 0.05, **output(m, dtype), "dtype": dtype}


def along(m: Maker, x: Tensor) -> tuple[int | None, Tensor, Tensor]:
    """An axis, or none, and scales and zero points for it."""
    axis = m.one(None, *range(-x.dim(), x.dim()))
    channels = 1 if axis is None else x.shape[axis]
    return axis, m.positive(channels), m.integers(channels, 100)


def values(m: Maker) -> Tensor:
    return m.real(*m.shape(9, m.count(4)), dtype=m.one(*FLOATS))


def quantize(m: Maker) -> Arguments:
    x = m.real(m.size(2), m.size(20), m.size(9), m.size(9), dtype=m.one(*FLOATS))
    axis, scale, zero_point = along(m, x)
    dtype, low, high = m.one(
        (torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.int16, -500, 500), (torch.int32, -9, 2**20)
    )
    last = m.one(True, False)
    return {
        "x": x, "scale": scale, "zero_point": zero_point, "quant_min": low, "quant_max": high, "dtype": dtype,
        "axis": axis, "channels_last": last,
    }  # fmt: skip


def dequantize(m: Maker) -> Arguments:
    q = m.stored(*m.shape(20, m.count(4)), dtype=m.one(*BYTES))
    axis, scale, zero_point = along(m, q)
    return {"q": q, "scale": scale, "zero_point": zero_point, "axis": axis}


def table_of_rows(m: Maker) -> Arguments:
    count, columns, bits = m.count(9), m.count(70), m.one(4, 8)
    weight = m.stored(count, columns if bits == 8 else (columns + 1) // 2, dtype=m.one(*BYTES))
    all_qparams = m.one(1, count)
    return {
        "weight": weight, "scale": m.positive(all_qparams), "zero_point": m.real(all_qparams), "bits": bits,
        "columns": columns
    }  # fmt: skip


def embedding(m: Maker) -> Arguments:
    given = table_of_rows(m)
    dtype = m.one(torch.int32, torch.int64)
    return {**given, "indices": m.integers(m.size(9), len(given["weight"]) - 1, dtype)}


def embedding_bag(m: Maker) -> Arguments:
    given = embedding(m)
    count, mode = given["indices"].numel(), m.count(2, 0)
    offsets = m.put(torch.tensor([0, count // 2, count // 2, count], dtype=m.one(torch.int32, torch.int64)))
    weights = m.one(None, m.positive(count)) if mode == 0 else None
    return {**given, "offsets": offsets, "mode": mode, "per_sample_weights": weights, "padding_idx": m.one(None, 0)}


LIMITS = {"quant_min": 0, "quant_max": 200}


def fake_quantize_tensor(m: Maker) -> Arguments:
    return {"input": values(m), "scale": 0.05, "zero_point": m.count(200, 0), **LIMITS}


def fake_quantize_qparams(m: Maker) -> Arguments:
    return {"input": values(m), "scale": m.positive(1), "zero_point": m.integers(1, 200), **LIMITS}


def fake_quantize_channel(m: Maker) -> Arguments:
    x = values(m)
    axis = m.count(x.dim() - 1, -x.dim())
    channels = x.shape[axis]
    return {
        "input": x, "scale": m.positive(channels), "zero_point": m.integers(channels, 200), "axis": axis, **LIMITS
    }  # fmt: skip


def fake_quantize_backward(m: Maker) -> Arguments:
    grad = values(m)
    return {"grad": grad, "mask": m.put(grad > 0)}


def learnable_backward(m: Maker) -> Arguments:
    x = values(m)
    axis, scale, zero_point = along(m, x)
    grad = m.real(*x.shape, dtype=x.dtype)
    qparams = {"scale": scale, "zero_point": zero_point.to(torch.float32), "axis": axis}
    return {"grad": grad, "input": x, **qparams, **LIMITS, "grad_factor": 0.5}


def folded(m: Maker) -> Arguments:
    x = values(m)
    all_qparams = m.one(1, len(x))
    return {
        "input": x, "factor": m.positive(len(x)), "scale": m.positive(all_qparams),
        "zero_point": m.integers(all_qparams, 200),
        **LIMITS,
    }  # fmt: skip


def folded_backward(m: Maker) -> Arguments:
    given = folded(m)
    return {"grad": m.real(*given["input"].shape, dtype=given["input"].dtype), **given}


def moving_average_qparams(m: Maker) -> Arguments:
    x = values(m)
    axis, low, high = along(m, x)
    return {
        "x": x, "running_min": m.put(-low), "running_max": m.put(high.to(torch.float32)), "axis": axis,
        "averaging_constant": 0.1, "eps": 1e-9, "quant_min": 0, "quant_max": 255, "middle": m.one(None, 128),
    }  # fmt: skip


def recurrent_steps(m: Maker) -> Arguments:
    mode, steps, rows = m.one(0, 0, 1, 2, 3), m.size(4), 0 if m.rarely(30) else m.one(1, 2, m.seldom(30, 7))
    size, projected = m.one(1, 5, 16, 33, 70, m.seldom(300, 40)), mode == 0 and m.one(True, False)
    outputs, count = m.count(size) if projected else size, (4, 3, 1, 1)[mode] * size
    weight, onto = m.weight(count, outputs), m.weight(outputs, size)
    dtype = m.one(*BYTES)
    low = 0 if dtype == torch.uint8 else -128
    return {
        "of_input": m.real(steps, rows, count), "hidden": m.real(rows, outputs),
        "cell": m.real(rows, size if mode == 0 else 0),
        "counts": m.one([rows] * steps, [min(rows, n) for n in sorted(m.sizes(max(1, rows), steps))[::-1]]),
        "reverse": m.one(True, False), "mode": mode, "weight": m.put(pack_weight(weight)),
        "correction": m.put(zero_point_correction(weight, torch.uint8, 1)), "weight_scale": m.positive(count),
        "bias": m.real(count), "projection": m.put(pack_weight(onto)) if projected else None,
        "projection_correction": m.put(zero_point_correction(onto, torch.uint8, 1)) if projected else None,
        "projection_scale": m.positive(outputs) if projected else None, "measured": m.one(True, False),
        **qparams(m, "", dtype), "eps": 1e-30, "quant_min": low + m.one(0, 20), "quant_max": low + m.one(255, 200),
        "middle": m.one(None, low + 128), "dtype": dtype,
    }  # fmt: skip


def histogram(m: Maker) -> Arguments:
    x = values(m)
    axis = m.one(None, *range(-x.dim(), x.dim()))
    sizes = [] if axis is None else [x.shape[axis]]
    counts = m.put(torch.zeros((*sizes, m.one(16, 70)), dtype=torch.int64))
    low, high = m.put(torch.full(sizes, torch.inf)), m.put(torch.full(sizes, -torch.inf))
    return {"x": x, "counts": counts, "low": low, "high": high, "axis": axis}


GUARDED: list[tuple[str, Callable[[Maker], Arguments]]] = [
    ("conv2d", depthwise),
    ("conv2d", unpadded),
    ("conv2d", part_of_the_channels),
]
"""Operators and calls of them that only the sweep of guarded operands makes, beside those of CALLS."""

CALLS: dict[str, Callable[[Maker], Arguments]] = {
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "add": pair,
    "avg_pool2d": avg_pool2d,
    "cat": cat,
    "conv2d": lambda m: convolution(m, 2),
    "conv3d": lambda m: convolution(m, 3),
    "dequantize": dequantize,
    "dynamic_linear": dynamic_linear,
    "embedding": embedding,
    "embedding_bag": embedding_bag,
    "fake_quantize_backward": fake_quantize_backward,
    "fake_quantize_folded": folded,
    "fake_quantize_folded_backward": folded_backward,
    "fake_quantize_learnable_backward": learnable_backward,
    "fake_quantize_per_channel_affine": fake_quantize_channel,
    "fake_quantize_per_channel_affine_cachemask": fake_quantize_channel,
    "fake_quantize_per_tensor_affine": fake_quantize_tensor,
    "fake_quantize_per_tensor_affine.tensor_qparams": fake_quantize_qparams,
    "fake_quantize_per_tensor_affine_cachemask": fake_quantize_tensor,
    "fake_quantize_per_tensor_affine_cachemask.tensor_qparams": fake_quantize_qparams,
    "histogram": histogram,
    "layer_norm": layer_norm,
    "linear": linear,
    "matmul": matmul,
    "max_pool2d": max_pool2d,
    "mean": mean,
    "moving_average_qparams": moving_average_qparams,
    "mul": pair,
    "per_token_linear": per_token_linear,
    "prelu": prelu,
    "quantize": quantize,
    "quantize_per_token": quantize_per_token,
    "recurrent_steps": recurrent_steps,
    "resample2d": resample2d,
    "softmax": softmax,
    "table": lambda m: {"x": m.stored(*m.sizes(20, 3), dtype=m.one(*BYTES)), "table": m.stored(256)},
    "weight_only_linear": weight_only_linear,
}
"""Operator -> what makes a valid call of it."""


def operator(name: str) -> Any:
    """``torch.ops.fxquant.<name>`` with its overload."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.fxquant, packet), overload or "default")


def ordered(name: str, given: Arguments) -> Arguments:
    """The arguments in the order of the schema."""
    return {argument.name: given[argument.name] for argument in operator(name)._schema.arguments}


def same(one: Any, other: Any) -> bool:
    """Whether two calls gave the same tensors to the bit, or both words of an error."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and (a.is_meta or torch.equal(bits_of(a), bits_of(b)))
        for a, b in zip(one, other, strict=True)
    )


def bits_of(x: Tensor) -> Tensor:
    """Every NaN is one."""
    return torch.nan_to_num(x.double(), nan=12345.678, posinf=1e300, neginf=-1e300) if x.is_floating_point() else x
