"""Every geometry of a transposed convolution, as plain ones: sums of whole numbers against torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.sub_convolutions import Axis, SubConvolutions

CONVOLUTIONS = {1: (F.conv1d, F.conv_transpose1d), 2: (F.conv2d, F.conv_transpose2d), 3: (F.conv3d, F.conv_transpose3d)}


def plain(weight: Tensor, geometry: ConvGeometry):
    """A convolution in float64, which counts its products."""

    def convolve(x: Tensor, residual: None) -> Tensor:
        function = CONVOLUTIONS[geometry.spatial][0]
        assert geometry.before == geometry.after
        how = (None, geometry.stride, geometry.before, geometry.dilation, geometry.groups)
        return function(x.double(), weight.double(), *how)

    return convolve


def check(x: Tensor, weight: Tensor, axes: tuple[Axis, ...], groups: int) -> None:
    spatial = len(axes)
    transposed = CONVOLUTIONS[spatial][1]
    how = [tuple(getattr(axis, name) for axis in axes) for name in ("stride", "padding", "output_padding", "dilation")]
    stride, padding, output_padding, dilation = how
    expected = transposed(x.double(), weight.double(), None, stride, padding, output_padding, groups, dilation)
    inner = weight.shape[1]
    mirrored = (
        weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1).flip([*range(2, 2 + spatial)])
    )
    absent = torch.zeros(groups * inner, dtype=weight.dtype)
    got = SubConvolutions(axes, mirrored, absent, groups, plain)(x)
    assert torch.equal(got, expected), axes


def integers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_every_geometry_of_one_axis(size) -> None:
    """All that torch takes of kernels up to 5, strides up to 4, and so on."""
    tried = 0
    for kernel, stride, padding, dilation in itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4), (0, 1, 3), (1, 2, 3)):
        for output_padding in range(max(stride, dilation)):
            axis = Axis(kernel, stride, padding, output_padding, dilation)
            if axis.output_size(size) > 0:
                check(integers(2, 3, size), integers(3, 2, kernel), (axis,), 1)
                tried += 1
    assert tried > 200


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_two_axes_and_groups(groups) -> None:
    axes = (Axis(3, 2, 1, 1, 1), Axis(4, 3, 0, 0, 2))
    check(integers(2, 4, 5, 6), integers(4, 2, 3, 4), axes, groups)


def test_three_axes() -> None:
    axes = (Axis(2, 2, 0, 0, 1), Axis(3, 1, 2, 0, 1), Axis(1, 3, 0, 2, 1))
    check(integers(1, 2, 3, 4, 5), integers(2, 2, 2, 3, 1), axes, 1)


def test_no_product_with_a_zero_between_the_inputs() -> None:
    """A kernel of 4 at stride 2 is four kernels of 2 x 2: 16 products per place, as many as the kernel has elements."""
    axes = (Axis(4, 2, 1, 0, 1),) * 2
    sub_convolutions = [list(axis.sub_convolutions()) for axis in axes]
    taps = [[len(range(*along.taps.indices(4))) for along in axis] for axis in sub_convolutions]
    assert taps == [[2, 2], [2, 2]]
    assert [along.padding for along in sub_convolutions[0]] == [1, 1]


def test_results_lie_as_those_of_the_convolutions() -> None:
    def in_channels_last(weight: Tensor, geometry: ConvGeometry):
        convolve = plain(weight, geometry)
        return lambda x, residual: convolve(x, residual).contiguous(memory_format=torch.channels_last)

    axes = (Axis(2, 2, 0, 0, 1),) * 2
    weight, absent = integers(3, 2, 2, 2), torch.zeros(3, dtype=torch.int64)
    y = SubConvolutions(axes, weight, absent, 1, in_channels_last)(integers(2, 2, 5, 5))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert SubConvolutions(axes, weight, absent, 1, plain)(integers(2, 2, 5, 5)).is_contiguous()


def test_volumes_lie_as_those_of_the_convolutions() -> None:
    def in_channels_last(weight: Tensor, geometry: ConvGeometry):
        convolve = plain(weight, geometry)
        return lambda x, residual: convolve(x, residual).contiguous(memory_format=torch.channels_last_3d)

    axes = (Axis(2, 2, 0, 0, 1),) * 3
    weight, absent = integers(3, 2, 2, 2, 2), torch.zeros(3, dtype=torch.int64)
    y = SubConvolutions(axes, weight, absent, 1, in_channels_last)(integers(2, 2, 3, 4, 5))
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
