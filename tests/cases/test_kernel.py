"""Kernel cases: infinities, ties, views, dtypes, gradients by hand, bad arguments, bounds of integers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant import kernels
from fxquant.errors import FxQuantError
from fxquant.fake_quantize import AdaRoundFakeQuantize
from fxquant.nn.table import QuantizedTable
from fxquant.observers import MinMaxObserver
from fxquant.plan.spec import QParams, QScheme

BYTES = (-128, 127)
HAND = 1e-4
"""Relative: gradients were added up by hand, in float64."""


def fake(x: Tensor, scale: float = 0.1, zero_point: int = 0, *, per_channel: bool = False) -> Tensor:
    if not per_channel:
        return kernels.fake_quantize_per_tensor_affine(x, scale, zero_point, *BYTES)
    channels = x.shape[-1]
    qparams = torch.full((channels,), scale), torch.full((channels,), zero_point, dtype=torch.int32)
    return kernels.fake_quantize_per_channel_affine(x, *qparams, x.dim() - 1, *BYTES)


@pytest.mark.parametrize("per_channel", [False, True])
def test_infinities_saturate_and_pass_no_gradient(per_channel):
    x = torch.tensor([1.0, math.inf, math.nan, -math.inf, 26.0]).repeat(13).requires_grad_()
    y = fake(x, per_channel=per_channel)
    # NaN is the smallest integer: no cast of it is undefined, on any machine
    torch.testing.assert_close(y.detach(), torch.tensor([1.0, 12.7, -12.8, -12.8, 12.7]).repeat(13))
    y.sum().backward()
    assert torch.equal(x.grad, torch.tensor([1.0, 0, 0, 0, 0]).repeat(13))


def test_ties_go_to_even_before_the_zero_point_is_added():
    x = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, -1.25])
    q = kernels.quantize(x, 0.5, 3, 0, 255, torch.uint8)
    assert q.tolist() == [3, 5, 5, 3, 1, 1]
    assert kernels.dequantize(q, 0.5, 3).tolist() == [0, 1, 1, 0, -1, -1]
    assert torch.equal(kernels.fake_quantize_per_tensor_affine(x, 0.5, 3, 0, 255), kernels.dequantize(q, 0.5, 3))


@pytest.mark.parametrize("per_channel", [False, True])
def test_views_are_read_by_their_strides(per_channel):
    base = torch.arange(24.0).reshape(2, 12) * 0.37 - 4
    for view in (base.chunk(2, 1)[1], base.t(), base[:, ::2]):
        assert torch.equal(fake(view, per_channel=per_channel), fake(view.contiguous(), per_channel=per_channel))
    leaf = torch.tensor([[0.1, 0.2, 0.3, 0.4]], requires_grad=True)
    fake(leaf.expand(3, 4), per_channel=per_channel).sum().backward()
    assert torch.equal(leaf.grad, torch.full((1, 4), 3.0))


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32])
def test_zero_points_and_scales_of_any_dtype(dtype, scale_dtype):
    x = torch.linspace(-2, 2, 12).reshape(4, 3)
    scale, zero_point = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 0, -1])
    expected = kernels.fake_quantize_per_channel_affine(x, scale, zero_point.int(), 1, *BYTES)
    got = kernels.fake_quantize_per_channel_affine(x, scale.to(scale_dtype), zero_point.to(dtype), 1, *BYTES)
    assert torch.equal(got, expected)


def test_gradients_of_a_learned_grid():
    x = torch.tensor([-20.0, -1, -0.26, 0.24, 1, 20], requires_grad=True)
    scale, zero_point = torch.tensor([0.1], requires_grad=True), torch.tensor([0.0], requires_grad=True)
    y = kernels.fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, *BYTES)
    y.backward(torch.tensor([1.0, 2, 3, 4, 5, 6]))
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 0]
    assert scale.grad.item() == pytest.approx(631.2, rel=HAND)
    assert zero_point.grad.item() == pytest.approx(-0.7, rel=HAND)


def test_gradients_of_a_learned_grid_per_channel():
    x = torch.tensor([[-5.0, 0.3, 2.2], [0.1, -0.4, 3.0]], requires_grad=True)
    scale = torch.tensor([0.5, 0.25], requires_grad=True)
    zero_point = torch.tensor([0.4, -0.6], requires_grad=True)  # rounded to 0 and -1
    factor = 1 / math.sqrt(3 * 7)
    y = kernels.fake_quantize_learnable_per_channel_affine(x, scale, zero_point, 0, -8, 7, factor)
    y.sum().backward()
    torch.testing.assert_close(y.detach(), torch.tensor([[-4.0, 0.5, 2.0], [0.0, -0.5, 2.0]]))
    assert x.grad.tolist() == [[0, 1, 1], [1, 1, 0]]
    by_hand = torch.tensor([-8 + 0.4 - 0.4, -0.4 - 0.4 + 8]) * factor
    torch.testing.assert_close(scale.grad, by_hand, rtol=HAND, atol=0)
    torch.testing.assert_close(zero_point.grad, torch.tensor([-0.5, -0.25]) * factor, rtol=HAND, atol=0)


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_gradient_ends_where_the_rounded_integer_leaves_the_range(per_channel):
    x = torch.tensor([-32.25, -32.125, -32.0, 31.75, 31.875, 32.0], requires_grad=True)
    y = fake(x, 0.25, per_channel=per_channel)
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0, 0]
    assert y.tolist() == [-32, -32, -32, 31.75, 31.75, 31.75]
    assert kernels.fake_quantize_per_tensor_affine_cachemask(x.detach(), 0.25, 0, *BYTES)[1].tolist() == [
        0,
        1,
        1,
        1,
        0,
        0,
    ]


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
GOOD = {"x": X, "scale": torch.tensor([0.1, 0.2, 0.3]), "zero_point": torch.zeros(3, dtype=torch.int32), "axis": 1}
BAD = {
    "axis too large": {"axis": 2},
    "axis too small": {"axis": -3},
    "axis out of all bounds": {"axis": 10**12},
    "too few scales": {"scale": torch.tensor([0.1, 0.2])},
    "an empty range": {"quant_min": 5, "quant_max": -5},
    "a zero point outside": {"zero_point": torch.tensor([0, 300, 0], dtype=torch.int32)},
    "no dimension": {"x": torch.tensor(1.0)},
}


def per_channel(x, scale, zero_point, axis, quant_min=-128, quant_max=127):
    return kernels.fake_quantize_per_channel_affine(x, scale, zero_point, axis, quant_min, quant_max)


def test_axes_count_from_either_end():
    expected = torch.clamp(torch.round(X * (1 / GOOD["scale"])), *BYTES) * GOOD["scale"]
    assert torch.equal(per_channel(**GOOD), expected)
    assert torch.equal(per_channel(**{**GOOD, "axis": -1}), expected)


@pytest.mark.parametrize("wrong", BAD)
def test_bad_arguments_raise(wrong):
    with pytest.raises((FxQuantError, ValueError, RuntimeError, IndexError), match=r"(axis|scale|quant_m|zero_point)"):
        per_channel(**{**GOOD, **BAD[wrong]})


@pytest.mark.parametrize(("function", "expected"), [(F.relu, [3, 3, 10, 40]), (F.relu6, [3, 3, 10, 15])])
def test_integers_are_clamped_at_the_zero_point(function, expected):
    qparams = QParams(QScheme(signed=False), torch.tensor([0.5]), torch.tensor([3], dtype=torch.int32))
    stored = torch.tensor([0, 3, 10, 40], dtype=torch.uint8)
    assert QuantizedTable(function, x=qparams, y=qparams)(stored).tolist() == expected


def test_rounding_begins_with_the_float_weight_and_ends_within_the_grid():
    weight = torch.tensor([-8.0, 7.49, 7.6, 0.0, 0.5, -0.3])
    rounding = AdaRoundFakeQuantize(MinMaxObserver, scheme=QScheme(bits=4, symmetric=True))
    rounding.activation_post_process(torch.tensor([-7.5, 7.5]))  # 15 steps: a scale of 1
    rounding.disable_observer()
    torch.testing.assert_close(rounding(weight).detach(), weight.clamp(-8, 7), rtol=0, atol=1e-3)
    rounding.enable_weight_fake_quant()
    allowed = ({-8}, {7}, {7}, {0}, {0, 1}, {-1, 0})
    assert all(one in among for one, among in zip(rounding(weight).tolist(), allowed, strict=True))
