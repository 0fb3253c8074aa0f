"""QuantizedConvTranspose against the transposed convolution of the same integers, computed in float64."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.errors import LoweringError
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.conv_transpose import Axis, QuantizedConvTranspose, SubConvolutions
from fxquant.plan.spec import Clamp, QParams, QScheme

X = QParams(QScheme(signed=False), torch.tensor([0.05]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.25]), torch.tensor([120], dtype=torch.int32))

CASES = {
    "4x4, stride 2": (nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), (2, 16, 7, 6)),
    "2x2, stride 2": (nn.ConvTranspose2d(16, 8, 2, stride=2, bias=False), (2, 16, 7, 6)),
    "output padding": (nn.ConvTranspose2d(8, 12, 3, stride=(2, 3), padding=1, output_padding=(1, 2)), (1, 8, 5, 5)),
    "groups": (nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4), (2, 8, 5, 5)),
    "depthwise": (nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, groups=8), (2, 8, 5, 5)),
    "dilated": (nn.ConvTranspose2d(8, 4, 3, dilation=2), (2, 8, 5, 5)),
    "cut more than the kernel reaches": (
        nn.ConvTranspose2d(8, 4, 2, stride=3, padding=3, output_padding=2),
        (1, 8, 6, 6),
    ),
    "one row is cut, one is kept": (nn.ConvTranspose2d(8, 4, 1, padding=(1, 0)), (1, 8, 4, 4)),
    "1d": (nn.ConvTranspose1d(8, 4, 5, stride=2), (3, 8, 9)),
    "3d": (nn.ConvTranspose3d(4, 6, 2, stride=2), (1, 4, 3, 4, 5)),
    "3d, all at once": (
        nn.ConvTranspose3d(6, 8, (3, 2, 3), (2, 1, 3), (1, 0, 2), (1, 0, 2), groups=2, dilation=(1, 2, 1)),
        (2, 6, 3, 4, 5),
    ),
    "no batch": (nn.ConvTranspose2d(8, 4, 3, stride=2), (8, 5, 5)),
}


def weight_qparams(conv: nn.Module) -> QParams:
    depthwise = conv.groups == conv.in_channels == conv.out_channels
    axis = 0 if depthwise else 1
    others = [dim for dim in range(conv.weight.dim()) if dim != axis]
    scale = conv.weight.detach().abs().amax(others) / 127.5
    return QParams(QScheme(symmetric=True, axis=axis), scale, torch.zeros(len(scale), dtype=torch.int32))


def build(conv: nn.Module, activation: Clamp | None = None) -> QuantizedConvTranspose:
    return QuantizedConvTranspose(conv, x=X, weight=weight_qparams(conv), y=Y, activation=activation)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_sums_are_those_of_the_transposed_convolution(name: str) -> None:
    conv, shape = CASES[name]
    q, qparams, activation = bytes_of(*shape), weight_qparams(conv), Clamp(-2.0, 3.0)
    module = build(conv, activation)
    along = [-1 if dim == qparams.scheme.axis else 1 for dim in range(conv.weight.dim())]
    integers = torch.round(conv.weight * (1 / qparams.scale).reshape(along)).clamp(-128, 127)
    exact = copy.deepcopy(conv).double()
    exact.weight.copy_(integers.double() * qparams.scale.double().reshape(along))
    real = exact((q.double() - 100) * X.scale.double()).clamp(-2.0, 3.0)
    steps = real / Y.scale.double() + 120
    assert module.reference(q).shape == steps.shape
    assert float((module.reference(q).double() - steps).abs().max()) <= 0.5 + 1e-4  # rounded once; sums in float32
    assert torch.equal(module(q), module.reference(q))
    unrounded = QuantizedConvTranspose(conv, x=X, weight=qparams, y=None, activation=activation)
    assert float((unrounded(q) / Y.scale + 120 - steps).abs().max()) <= 1e-4


def test_memory_order_and_random_numbers_stay() -> None:
    conv, shape = CASES["4x4, stride 2"]
    state = torch.get_rng_state()
    module = build(conv)
    assert torch.equal(torch.get_rng_state(), state)
    q = bytes_of(*shape)
    assert torch.equal(module(q.contiguous(memory_format=torch.channels_last)), module(q))
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), module(q))


def test_scales_along_input_channels_are_refused() -> None:
    conv, _ = CASES["4x4, stride 2"]
    qparams = weight_qparams(conv)
    with pytest.raises(LoweringError) as caught:
        QuantizedConvTranspose(
            conv, x=X, weight=QParams(QScheme(symmetric=True, axis=0), qparams.scale, qparams.zero_point), y=Y
        )
    assert str(caught.value) == (
        "int8 operators need one scale per output channel of the weight\n"
        "  got:      axis=0 of a transposed weight of shape [16, 8, 4, 4]\n"
        "  expected: axis=1, or one scale for the whole tensor"
    )


def test_printing() -> None:
    conv, _ = CASES["2x2, stride 2"]
    assert (
        repr(build(conv)).splitlines()[1].strip().startswith("transposed, stride=(2, 2), as 16, 8, kernel_size=(2, 2)")
    )


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
