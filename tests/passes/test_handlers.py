"""Patterns registered as classes: nested tuples with the output first, handlers that observe and may decline."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import DuplicateNameError, PassError, SpecError
from fxquant.nn import QuantizedConv
from fxquant.observers import MinMaxObserver
from tests.outputs import rounding_outputs

HIGH_SQNR = 25.0
"""dB that 8 bits reach easily on one small layer; a structural error gives less than 12."""


def sqnr(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()).detach())


class MyConv(nn.Conv2d):
    """A convolution with a forward of its own, so that nobody takes it for nn.Conv2d."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = MyConv(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.bn(self.conv(x))))


@pytest.fixture
def registered():
    """Forget, at the end, every pattern that a test registered."""
    from fxquant.patterns.registry import REGISTERED

    before = set(REGISTERED)
    yield REGISTERED
    for name in set(REGISTERED) - before:
        fxq.unregister_pattern(name)


def register_conv_handler(log: list):
    @fxq.register_pattern((nn.ReLU, (nn.BatchNorm2d, MyConv)))
    class ConvBnRelu:
        def __init__(self, quantizer, node) -> None:
            self.bn_node = node.args[0]
            self.conv_node = self.bn_node.args[0]
            self.output = MinMaxObserver(dtype=torch.uint8)

        def observe(self, node, env) -> None:
            log.append((node.name, tuple(env[node.name].shape)))
            self.output(env[node])

        def qparams(self):
            return self.output.qparams()

        def quantize(self, quantizer, node, load_arg):
            from fxquant.passes.fold_conv_bn import fold

            modules = quantizer.modules
            folded = fold(modules[self.conv_node.target], modules[self.bn_node.target])
            weight = fxq.PerChannelMinMaxObserver(dtype=torch.int8, qscheme="per_channel_symmetric")
            weight(folded.weight.detach())
            (x,) = load_arg(self.conv_node.args)
            lowered = QuantizedConv(
                folded,
                x=quantizer.qparams(self.conv_node.args[0]),
                weight=weight.qparams(),
                y=self.qparams(),
                activation=fxq.Clamp(0.0, None),
            )
            return quantizer.quantized_graph.call_module(quantizer.add_module("my_conv", lowered), (x,))

    return ConvBnRelu


def test_a_handler_lowers_its_match(registered):
    log: list = []
    register_conv_handler(log)
    model = Net().eval()
    x = torch.randn(4, 3, 8, 8)
    prepared = fxq.prepare(model, x, rounding_outputs())
    assert [unit.pattern.partition("[")[0] for unit in prepared.plan.units] == ["ConvBnRelu", "conv"]
    assert prepared.plan.units[0].nodes == ("conv", "bn", "relu")
    fxq.calibrate(prepared, [x], progress=False)
    assert log == [("relu", (4, 4, 6, 6))]

    int8 = fxq.convert(prepared)
    assert isinstance(int8.my_conv, QuantizedConv)
    assert [str(node.target) for node in int8.graph.nodes if node.op == "call_module"] == [
        "x_quantize",
        "my_conv",
        "head",
        "head_dequantize",
    ]
    assert sqnr(model(x), int8(x)) > HIGH_SQNR
    assert sqnr(model(x), fxq.convert(prepared, to="fake_quant")(x)) > HIGH_SQNR


def test_a_handler_that_declines_leaves_its_match_in_float(registered):
    @fxq.register_pattern(torch.add)
    class Add:
        def __init__(self) -> None:
            self.all_tensors = True

        def observe(self, node, env) -> None:
            self.all_tensors &= all(isinstance(arg, torch.fx.Node) for arg in node.args)

        def quantize(self, quantizer, node, load_arg):
            if not self.all_tensors:
                return NotImplemented
            raise AssertionError("this model adds a number")

    class PlusOne(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) + 1

    model = PlusOne().eval()
    x = torch.randn(2, 3, 4, 4)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    int8 = fxq.convert(prepared)
    assert [node.target for node in int8.graph.nodes if node.op == "call_function"] == [torch.add]
    assert "its handler declined (NotImplemented)" in [r.reason for r in int8.quant_plan.refusals]
    assert sqnr(model(x), int8(x)) > HIGH_SQNR


def test_a_handler_may_answer_with_a_float(registered):
    @fxq.register_pattern(torch.sin)
    class Sine:
        def observe(self, node, env) -> None:
            pass

        def quantize(self, quantizer, node, load_arg):
            (x,) = load_arg(node.args)
            qparams = quantizer.qparams(node.args[0])
            scale, zero_point = float(qparams.scale), int(qparams.zero_point)
            graph = quantizer.quantized_graph
            steps = graph.call_function(torch.sub, (graph.call_method("float", (x,)), zero_point))
            return graph.call_function(torch.sin, (graph.call_function(torch.mul, (steps, scale)),))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.sin(self.a(x)))

    model, x = Model().eval(), torch.randn(8, 4)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    int8 = fxq.convert(prepared)
    assert int8.quant_plan.refusals == ()
    assert sqnr(model(x), int8(x)) > HIGH_SQNR


def test_a_handler_must_answer_with_a_node(registered):
    @fxq.register_pattern(torch.sin)
    class Broken:
        def observe(self, node, env) -> None:
            pass

        def quantize(self, quantizer, node, load_arg):
            return 7

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(self.a(x))

    x = torch.randn(2, 4)
    prepared = fxq.calibrate(fxq.prepare(Model().eval(), x), [x], progress=False)
    with pytest.raises(PassError) as caught:
        fxq.convert(prepared)
    assert "answered neither a node nor NotImplemented" in str(caught.value)
    assert "got:      7" in str(caught.value)


def test_a_later_pattern_does_not_overwrite_a_match(registered):
    """ReLU alone is registered last; the three nodes still belong to the larger match."""
    register_conv_handler([])

    @fxq.register_pattern(nn.ReLU)
    class Relu:
        def observe(self, node, env) -> None:
            raise AssertionError("never matched")

        def quantize(self, quantizer, node, load_arg):
            raise AssertionError("never matched")

    prepared = fxq.prepare(Net().eval(), torch.randn(1, 3, 8, 8))
    assert prepared.plan.units[0].pattern.startswith("ConvBnRelu")


def test_an_incomplete_handler_is_refused(registered):
    with pytest.raises(SpecError) as caught:

        @fxq.register_pattern(nn.ReLU)
        class Half:
            def observe(self, node, env) -> None:
                pass

    assert "Half cannot handle a pattern: it has no method 'quantize'" in str(caught.value)


def test_a_tree_is_registered_once(registered):
    register_conv_handler([])
    with pytest.raises(DuplicateNameError) as caught:
        register_conv_handler([])
    assert "registered already" in str(caught.value)


def test_a_pattern_with_its_own_lowering(registered):
    class Swish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    mine = fxq.Pattern(
        "swish",
        root=fxq.op(Swish)(fxq.tensor("x")),
        lower={"cpu": lambda unit: fxq.nn.QuantizedTable(nn.SiLU(), unit.qparams["x"], unit.qparams["y"])},
    )
    model, x = nn.Sequential(nn.Linear(4, 8), Swish(), nn.Linear(8, 2)).eval(), torch.randn(16, 4)
    prepared = fxq.Quantizer(model, x, patterns=(*fxq.DEFAULT_PATTERNS, mine)).calibrate([x], progress=False)
    assert [unit.pattern for unit in prepared.plan.units] == ["linear", "swish", "linear"]
    int8 = prepared.quantize()
    assert isinstance(int8.get_submodule("1"), fxq.nn.QuantizedTable)
    assert sqnr(model(x), int8(x)) > HIGH_SQNR
