"""What part of the outputs each tap adds to: against convolutions that have a single tap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fxquant.passes.padding_coverage import Sizes, padding_coverage, some_read_nothing

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def counted(layer: nn.Module, inputs: tuple[int, ...]) -> tuple[Tensor, Sizes]:
    """The shares, and the sizes that they hold for: of the ones of an input, what each tap alone hands on."""
    shares = torch.zeros(layer.kernel_size, dtype=torch.float64)
    x = torch.ones(1, 1, *inputs)
    for tap in range(shares.numel()):
        with torch.no_grad():
            layer.weight.zero_().view(-1)[tap] = 1
            y = layer(x)
        shares.view(-1)[tap] = y.double().mean()
    return shares, (inputs, tuple(y.shape[2:]))


def check(layer: nn.Module, inputs: tuple[int, ...]) -> None:
    expected, sizes = counted(layer, inputs)
    torch.testing.assert_close(padding_coverage(layer, sizes), expected, rtol=1e-12, atol=0)  # float64: a few products
    with torch.no_grad():
        layer.weight.fill_(1)
        y = layer(torch.ones(1, 1, *inputs))
    assert some_read_nothing(layer, sizes) == bool((y == 0).any())


def along(low: int, high: int, dims: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * dims)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_convolutions(data, dims):
    kernel, dilation, stride, padding = (data.draw(along(low, 3, dims)) for low in (1, 1, 1, 0))
    reach = [gap * (taps - 1) + 1 - 2 * pad for gap, taps, pad in zip(dilation, kernel, padding, strict=True)]
    inputs = tuple(max(least, 1) + more for least, more in zip(reach, data.draw(along(0, 4, dims)), strict=True))
    check(CONV[dims](1, 1, kernel, stride, padding, dilation, bias=False), inputs)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_transposed_convolutions(data, dims):
    kernel, dilation, stride = (data.draw(along(1, 3, dims)) for _ in range(3))
    padding = tuple(data.draw(st.integers(0, taps)) for taps in kernel)
    more = tuple(data.draw(st.integers(0, max(pair) - 1)) for pair in zip(dilation, stride, strict=True))
    least = tuple(1 + 2 * pad for pad in padding)
    inputs = tuple(size + extra for size, extra in zip(least, data.draw(along(0, 3, dims)), strict=True))
    layer = TRANSPOSED[dims](1, 1, kernel, stride, padding, more, bias=False, dilation=dilation)
    check(layer, inputs)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding):
    check(nn.Conv2d(1, 1, (4, 3), padding=padding, dilation=(1, 2), bias=False), (6, 5))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_that_repeats_values(mode):
    layer = nn.Conv2d(1, 1, 3, padding=2, padding_mode=mode, bias=False)
    check(layer, (4, 5))
    assert torch.equal(padding_coverage(layer, None), torch.ones(3, 3, dtype=torch.float64))


def test_more_padding_than_image():
    found = padding_coverage(nn.Conv1d(1, 1, 3, padding=1), ((2,), (2,)))
    assert found.tolist() == [0.5, 1, 0.5]


def test_unknown_sizes_are_large_ones():
    conv, transposed = nn.Conv1d(1, 1, 3, padding=1), nn.ConvTranspose1d(1, 1, 4, stride=2)
    assert padding_coverage(conv, None).tolist() == [1, 1, 1]
    assert padding_coverage(transposed, None).tolist() == [0.5, 0.5, 0.5, 0.5]
