"""The range of a weight that trains is that of the present weight, and its largest value gets a gradient."""

from __future__ import annotations

import pickle

import pytest
import torch

from fxquant.fake_quantize import FakeQuantize, WeightFakeQuantize
from fxquant.observers import MinMaxObserver, MovingAverageMinMaxObserver, PerChannelMinMaxObserver

ENDS = torch.arange(1, 4001).reshape(-1, 1) / 1000
"""Of quotients by 127.5, some are rounded up, and some down."""


def test_weights_are_not_averaged_over_steps():
    weight = WeightFakeQuantize().eval()
    for factor in (1.0, 127.5, 255.0):
        weight(torch.tensor([[0.5], [1.0]]) * factor)
    assert weight.scale.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_largest_weight_is_the_last_integer_and_gets_a_gradient_in_training(bits, training):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    weight = WeightFakeQuantize(quant_min=low, quant_max=high).train(training)
    values = torch.cat([ENDS, -ENDS / 3], 1).requires_grad_()
    rounded = weight(values)
    rounded.sum().backward()
    assert (torch.round(rounded / weight.scale[:, None])[:, 0] == high).all()
    assert (values.grad[:, 1] == 1).all()
    if training:
        assert (values.grad[:, 0] == 1).all()
        weight.eval()(values)
    else:
        assert (values.grad[:, 0] == 0).any()  # half a step beyond
    plain = PerChannelMinMaxObserver(quant_min=low, quant_max=high, qscheme="per_channel_symmetric", dtype=torch.int8)
    plain(values)
    assert torch.equal(weight.scale, plain.calculate_qparams()[0])


def test_the_integers_are_those_of_the_exact_scale():
    values = torch.randn(64, 9, generator=torch.Generator().manual_seed(0))
    trains, exact = WeightFakeQuantize(), WeightFakeQuantize().eval()
    integers = [torch.round(each(values) / each.scale[:, None]) for each in (trains, exact)]
    assert torch.equal(*integers)
    assert integers[0].min() == -128
    larger = trains.scale != exact.scale
    assert torch.equal(larger, values.amax(1) >= -values.amin(1))
    assert (trains.scale / exact.scale - 1).abs().max() < 4e-7


def test_limits_that_are_symmetric_need_nothing():
    trains, exact = (WeightFakeQuantize(quant_min=-127).train(mode) for mode in (True, False))
    for each in (trains, exact):
        each(ENDS)
    assert torch.equal(trains.scale, exact.scale)


def test_a_weight_of_one_scale():
    weight = WeightFakeQuantize(MovingAverageMinMaxObserver, qscheme="per_tensor_symmetric")
    values = torch.tensor([[0.7, -0.1]], requires_grad=True)
    weight(values).sum().backward()
    assert weight.scale.shape == (1,)
    assert values.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
def test_in_torchscript_and_pickled():
    values = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    weight = WeightFakeQuantize()
    weight(values)
    scripted, copied = torch.jit.script(WeightFakeQuantize()), pickle.loads(pickle.dumps(weight))
    scripted(values)
    for each in (scripted, copied):
        assert torch.equal(each(values * 2), weight(values * 2))
        weight(values)


def test_another_observer_is_refused():
    with pytest.raises(ValueError, match="takes no argument 'averaging_constant'"):
        WeightFakeQuantize(MinMaxObserver, qscheme="per_tensor_symmetric")
    assert issubclass(WeightFakeQuantize, FakeQuantize)
