"""No step between adjacent layers, and nothing packed twice. How long things take, benchmarks say."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.graph.query import module_of
from fxquant.nn import Dequantize, Quantize, QuantizedModule


def test_one_quantize_no_dequantize_and_weights_packed_once():
    layers: list[nn.Module] = []
    for channels in (3, 16, 16):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()
    x = torch.randn(2, 3, 16, 16)
    int8 = fxq.convert(fxq.prepare(model, x).calibrate([x], progress=False))
    called = [module_of(node) for node in int8.graph.nodes if node.op == "call_module"]
    assert sum(isinstance(module, Quantize) for module in called) == 1
    assert not any(isinstance(module, Dequantize) for module in called)  # the last layer gives real numbers
    assert isinstance(called[0], Quantize)
    expected = int8(x)
    packed = {name: m._packed for name, m in int8.named_modules() if isinstance(m, QuantizedModule)}
    assert all(value is not None for value in packed.values())
    assert torch.equal(int8(x), expected)
    assert all(int8.get_submodule(name)._packed is value for name, value in packed.items())


def test_a_histogram_costs_the_same_whatever_the_range():
    """Its bins are the same in number and kind after a range grew a million times as after one that stayed."""
    x = torch.randn(1, 64, 28, 28)
    steady, jumping = fxq.HistogramObserver(scheme=fxq.QScheme()), fxq.HistogramObserver(scheme=fxq.QScheme())
    for factor in (1.0, 1.01):
        steady(x * factor)
    for factor in (1e-3, 1e3):
        jumping(x * factor)
    assert {n: (v.shape, v.dtype) for n, v in steady.state_dict().items()} == {
        n: (v.shape, v.dtype) for n, v in jumping.state_dict().items()
    }
