"""The integer convolution against loops in Python integers, and its geometry against torch.nn."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.kernels.conv.reference import ConvGeometry, conv_reference, pad
from fxquant.kernels.epilogue import Epilogue


def conv_of(spatial: int, *args: object, **kwargs: object) -> nn.Module:
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[spatial - 1](*args, **kwargs)


def plain(channels: int) -> Epilogue:
    """Leaves sums alone, but for one division that brings them into a byte."""
    return Epilogue(
        x_scale=1.0,
        weight_scale=torch.ones(channels),
        bias=None,
        y_scale=997.0,
        y_zero_point=3,
        quant_min=-128,
        quant_max=127,
        dtype=torch.int8,
    )


def by_loops(x: Tensor, x_zero: int, weight: Tensor, w_zero: Tensor, geometry: ConvGeometry) -> Tensor:
    """Sums in Python integers, zero padding only."""
    out = geometry.output_size(tuple(x.shape[2:]))
    sums = torch.zeros(x.shape[0], weight.shape[0], *out, dtype=torch.int64)
    per_group_out, per_group_in = weight.shape[0] // geometry.groups, weight.shape[1]
    for n, c in itertools.product(range(x.shape[0]), range(weight.shape[0])):
        first = c // per_group_out * per_group_in
        for place in itertools.product(*map(range, out)):
            total = 0
            for k, *tap in itertools.product(range(per_group_in), *map(range, geometry.kernel_size)):
                where = [
                    p * s + t * d - b
                    for p, s, t, d, b in zip(
                        place, geometry.stride, tap, geometry.dilation, geometry.before, strict=True
                    )
                ]
                if all(0 <= i < size for i, size in zip(where, x.shape[2:], strict=True)):
                    value = int(x[(n, first + k, *where)]) - x_zero
                    total += value * (int(weight[(c, k, *tap)]) - int(w_zero[c]))
            sums[(n, c, *place)] = total
    return sums


CASES = {
    "1d": (conv_of(1, 3, 4, 3, stride=2, padding=2), (2, 3, 9)),
    "1d same": (conv_of(1, 3, 4, 4, padding="same", dilation=3), (1, 3, 12)),
    "2d": (conv_of(2, 3, 4, 3, padding=1), (2, 3, 6, 5)),
    "2d strided, dilated": (conv_of(2, 4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2)), (1, 4, 7, 6)),
    "2d same": (conv_of(2, 3, 2, (2, 4), padding="same"), (2, 3, 5, 4)),
    "2d valid": (conv_of(2, 3, 2, 2, padding="valid"), (2, 3, 5, 4)),
    "groups": (conv_of(2, 6, 4, 3, padding=1, groups=2), (1, 6, 4, 4)),
    "depthwise": (conv_of(2, 5, 10, 3, padding=1, groups=5), (1, 5, 4, 4)),
    "3d": (conv_of(3, 2, 3, (2, 3, 2), stride=(1, 2, 1), padding=(1, 0, 1)), (1, 2, 3, 5, 3)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("dtype", "x_zero", "w_zero"), [(torch.uint8, 37, 0), (torch.int8, -5, 0), (torch.uint8, 200, 9)]
)
def test_sums_are_exact(name: str, dtype: torch.dtype, x_zero: int, w_zero: int) -> None:
    conv, shape = CASES[name]
    geometry, generator = ConvGeometry.of(conv), torch.Generator().manual_seed(0)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
    x = torch.randint(low, high, shape, generator=generator, dtype=dtype)
    weight = torch.randint(-128, 128, conv.weight.shape, generator=generator, dtype=torch.int8)
    zeros = torch.full((len(weight),), w_zero, dtype=torch.int32)
    epilogue = plain(len(weight))

    got = conv_reference(x, x_zero, weight, zeros, geometry, epilogue)

    want = epilogue.apply(by_loops(x, x_zero, weight, zeros, geometry).double(), 1)
    assert torch.equal(got, want)
    assert got.unique().numel() > 5  # the division left something to compare


def test_a_large_fan_in_is_exact() -> None:
    """2048 products of 255 and 127 pass 2**24, where float32 sums would round."""
    conv = nn.Conv2d(2048, 3, 1)
    x = torch.full((1, 2048, 2, 2), 255, dtype=torch.uint8)
    x[:, 0] = torch.tensor([[254, 253], [252, 255]])
    weight = torch.full((3, 2048, 1, 1), 127, dtype=torch.int8)
    weight[1, 0], weight[2, :1024] = 126, -128
    epilogue = Epilogue(
        x_scale=1.0,
        weight_scale=torch.ones(1),
        bias=torch.tensor([-66_324_480.0, -66_324_224.0, 262_144.0]),
        y_scale=8.0,
        y_zero_point=0,
        quant_min=-128,
        quant_max=127,
        dtype=torch.int8,
    )

    got = conv_reference(x, 0, weight, torch.zeros(1, dtype=torch.int32), ConvGeometry.of(conv), epilogue)

    sums = torch.einsum("nchw,oc->nohw", x.long(), weight[:, :, 0, 0].long())
    assert sums.abs().max() > 2**24
    assert torch.equal(got, epilogue.apply(sums.double(), 1))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_pads_as_torch_does(mode: str, spatial: int) -> None:
    conv = conv_of(spatial, 2, 2, (3, 5, 3)[:spatial], padding=(1, 2, 1)[:spatial], padding_mode=mode)
    x = torch.arange(2 * 5**spatial, dtype=torch.uint8).reshape(1, 2, *[5] * spatial)

    got = pad(x, ConvGeometry.of(conv), 77)

    sides = [side for size in reversed(conv.padding) for side in (size, size)]
    want = F.pad(
        x.float(), sides, mode="constant" if mode == "zeros" else mode, **({"value": 77} if mode == "zeros" else {})
    )
    assert got.dtype == torch.uint8
    assert torch.equal(got.float(), want)


def test_without_padding_the_tensor_is_itself() -> None:
    x = torch.zeros(1, 2, 3, 3)

    assert pad(x, ConvGeometry.of(nn.Conv2d(2, 2, 3, padding_mode="circular")), 0) is x


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_geometry_is_that_of_the_module(name: str) -> None:
    conv, shape = CASES[name]

    assert ConvGeometry.of(conv).output_size(shape[2:]) == tuple(conv(torch.zeros(shape)).shape[2:])


def test_uneven_same_padding_pads_the_end_once_more() -> None:
    geometry = ConvGeometry.of(nn.Conv2d(1, 1, (2, 3), padding="same"))

    assert (geometry.before, geometry.after) == ((0, 1), (1, 1))


def test_an_empty_batch_gives_an_empty_result() -> None:
    conv = nn.Conv2d(3, 4, 3)
    weight = torch.ones(conv.weight.shape, dtype=torch.int8)

    got = conv_reference(
        torch.empty(0, 3, 8, 8, dtype=torch.uint8), 0, weight, torch.zeros(1), ConvGeometry.of(conv), plain(4)
    )

    assert got.shape == (0, 4, 6, 6)


def test_the_input_stays_as_it_is() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    x = torch.randint(0, 256, (1, 3, 5, 5), dtype=torch.uint8)
    before = x.clone()
    weight = torch.ones(conv.weight.shape, dtype=torch.int8)
    residual = torch.full((1, 4, 5, 5), 9, dtype=torch.int8)

    conv_reference(x, 3, weight, torch.zeros(1, dtype=torch.int32), ConvGeometry.of(conv), plain(4), residual)

    assert torch.equal(x, before)
    assert torch.equal(residual, torch.full_like(residual, 9))
