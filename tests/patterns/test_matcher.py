"""Where patterns fit, and what is said where they do not."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, symbolic_trace

from fxquant.patterns.conv import CONV, CONV_BN, plus_residual
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.elementwise import ELEMENTWISE
from fxquant.patterns.matcher import PatternIndex, match
from fxquant.patterns.pattern import Match, Mismatch, Pattern, number, op, tensor

CAT = next(pattern for pattern in ELEMENTWISE if pattern.name == "cat")
ADD_NUMBER = Pattern("add_number", op(torch.add)(tensor("x"), number("other")).named("add"))
CONV_RELU = Pattern("conv_relu", op(F.relu)(CONV).named("act"), weight="conv")
CONV_ADD = Pattern("conv_add", plus_residual(CONV), ("x", "residual"), "conv")
SWISH = Pattern("swish", op(torch.mul, commutative=True)(tensor("x"), op(torch.sigmoid)(tensor("x"))))


class Net(nn.Module):
    """Two convolutions, a batch norm, and a body to be given."""

    def __init__(self, body) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.other = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm2d(3)
        self.body = body

    def forward(self, x, y):
        return self.body(self, x, y)


def matched(pattern: Pattern, body, root: str = "") -> Match | Mismatch:
    """Match at the node called ``root``, else at the last call."""
    graph = symbolic_trace(Net(body)).graph
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    return match(pattern, next(node for node in reversed(calls) if root in ("", node.name)))


def names(found: Match) -> tuple[tuple[str, ...], dict[str, object]]:
    captures = {name: getattr(value, "name", value) for name, value in found.captures.items()}
    return tuple(node.name for node in found.nodes), captures


@pytest.mark.parametrize(
    ("pattern", "body", "nodes", "captures"),
    [
        (ADD_NUMBER, lambda m, x, y: torch.add(x, 2), ("add",), {"x": "x", "other": 2, "add": "add"}),
        (CONV_RELU, lambda m, x, y: F.relu(m.conv(x)), ("conv", "relu"), {"x": "x", "conv": "conv", "act": "relu"}),
        (
            CONV_ADD,
            lambda m, x, y: torch.add(m.conv(x), y),
            ("conv", "add"),
            {"x": "x", "conv": "conv", "residual": "y", "add": "add"},
        ),
        (
            CONV_ADD,
            lambda m, x, y: torch.add(y, m.conv(x)),
            ("conv", "add"),
            {"x": "x", "conv": "conv", "residual": "y", "add": "add"},
        ),
        (
            CONV_ADD,
            lambda m, x, y: torch.add(m.conv(x), m.other(y)),
            ("conv", "add"),
            {"x": "x", "conv": "conv", "residual": "other", "add": "add"},
        ),
        (
            Pattern("deep", op(F.relu)(plus_residual(CONV_BN)).named("act"), ("x", "residual"), "conv"),
            lambda m, x, y: F.relu(torch.add(x, m.bn(m.conv(x)))),
            ("conv", "bn", "add", "relu"),
            {"x": "x", "residual": "x", "conv": "conv", "bn": "bn", "add": "add", "act": "relu"},
        ),
        (Pattern("mul", op(torch.mul)(tensor("x"))), lambda m, x, y: torch.mul(x, 3), ("mul",), {"x": "x"}),
        (
            Pattern("add", op(torch.add)(tensor("a"), tensor("b")), ("a", "b")),
            lambda m, x, y: torch.add(x, 0.5),
            ("add",),
            {"a": "x", "b": 0.5},
        ),
        (Pattern("method", op("argmax")(tensor("x"))), lambda m, x, y: x.argmax(1), ("argmax",), {"x": "x"}),
    ],
)
def test_fits(pattern, body, nodes, captures):
    found = matched(pattern, body)
    assert isinstance(found, Match)
    assert found.pattern is pattern
    assert names(found) == (nodes, captures)
    assert found.inputs == pattern.inputs


def test_a_list_of_inputs_is_expanded():
    found = matched(CAT, lambda m, x, y: torch.cat([x, y, x], 1))
    assert names(found) == (("cat",), {"x0": "x", "x1": "y", "x2": "x", "cat": "cat"})
    assert found.inputs == ("x0", "x1", "x2")


def test_the_root_and_the_inputs_may_have_any_number_of_readers():
    def body(m, x, y):
        act = F.relu(m.conv(x))
        return act + x, act

    assert isinstance(matched(CONV_RELU, body, "relu"), Match)


@pytest.mark.parametrize(
    ("pattern", "body", "node", "reason", "count"),
    [
        (CONV_RELU, lambda m, x, y: m.conv(x), "conv", "not a call of relu", 0),
        (CONV_RELU, lambda m, x, y: F.relu(m.bn(x)), "bn", "not a call of Conv1d or Conv2d or Conv3d", 1),
        (
            Pattern("two", op(F.relu, F.relu6)(tensor("x"))),
            lambda m, x, y: torch.tanh(x),
            "tanh",
            "not a call of relu or relu6",
            0,
        ),
        (
            CONV_ADD,
            lambda m, x, y: (lambda c: torch.add(c, c))(m.conv(x)),
            "add",
            "both operands are the same value, which cannot be fused away",
            2,
        ),
        (
            Pattern("add", op(torch.add)(CONV, tensor("b")), ("x", "b")),
            lambda m, x, y: torch.add(2.0, x),
            "add",
            "2.0 stands where Conv1d or Conv2d or Conv3d should",
            1,
        ),
        (
            Pattern("two", op(torch.add)(tensor("a"), tensor("b")), ("a", "b")),
            lambda m, x, y: torch.add(x, other=y),
            "add",
            "has 1 positional arguments, 2 are needed",
            1,
        ),
        (ADD_NUMBER, lambda m, x, y: torch.add(x, y), "add", "y stands where a number should", 1),
        (CAT, lambda m, x, y: torch.cat(x.chunk(2)), "cat", "chunk stands where a list of tensors should", 1),
    ],
)
def test_does_not_fit(pattern, body, node, reason, count):
    found = matched(pattern, body)
    assert isinstance(found, Mismatch)
    assert (found.pattern, found.node.name, found.reason, found.matched) == (pattern.name, node, reason, count)


def test_an_interior_value_that_is_read_elsewhere_cannot_be_fused_away():
    def body(m, x, y):
        conv = m.conv(x)
        return F.relu(conv), conv

    found = matched(CONV_RELU, body, "relu")
    assert isinstance(found, Mismatch)
    assert (found.node.name, found.matched) == ("conv", 1)
    assert found.reason == "its value has 2 readers, so it cannot be fused away"


def test_the_output_of_the_model_is_a_reader_too():
    """A second call of one module is another node: only values are counted, not modules."""
    found = matched(CONV_RELU, lambda m, x, y: (F.relu(m.conv(x)), m.conv(y)), "relu")
    assert names(found)[0] == ("conv", "relu")


def test_of_two_orders_the_nearer_miss_is_reported():
    found = matched(
        Pattern("conv_bn_add", plus_residual(CONV_BN), ("x", "residual"), "conv"),
        lambda m, x, y: torch.add(F.relu(y), m.bn(F.relu(x))),
    )
    assert isinstance(found, Mismatch)
    assert (found.node.name, found.reason, found.matched) == ("relu_1", "not a call of Conv1d or Conv2d or Conv3d", 2)


def test_operators_on_both_sides_are_counted():
    both = Pattern("both", op(torch.add)(CONV, op(F.relu)(op(nn.BatchNorm2d)(tensor("b")))), ("x", "b"))
    found = matched(both, lambda m, x, y: torch.add(m.conv(x), F.relu(torch.tanh(y))))
    assert isinstance(found, Mismatch)
    assert (found.node.name, found.matched) == ("tanh", 3)


@pytest.mark.parametrize(
    "body", [lambda m, x, y: torch.mul(x, torch.sigmoid(x)), lambda m, x, y: torch.mul(torch.sigmoid(x), x)]
)
def test_a_name_at_two_places_is_one_value(body):
    found = matched(SWISH, body)
    assert names(found) == (("sigmoid", "mul"), {"x": "x"})


def test_a_gate_is_no_swish():
    found = matched(SWISH, lambda m, x, y: torch.mul(y, torch.sigmoid(x)))
    assert isinstance(found, Mismatch)
    assert found.node.name == "mul"
    assert found.reason == "two of its operands should be the same value"


def test_orders_of_operands_are_tried_together():
    """Only the second order of the inner sum lets both names ``x`` meet: the first one that fits alone is wrong."""
    hard = Pattern(
        "hard",
        op(torch.mul)(tensor("x"), op(F.relu6)(op(torch.add, commutative=True)(tensor("x"), tensor("b")))),
    )
    found = matched(hard, lambda m, x, y: torch.mul(x, F.relu6(torch.add(y, x))))
    assert names(found) == (("add", "relu6", "mul"), {"x": "x", "b": "y"})


def test_equal_numbers_are_one_value_equal_tensors_are_not():
    same = Pattern("same", op(torch.add)(tensor("x"), op(torch.mul)(tensor("b"), tensor("x"))))
    assert isinstance(matched(same, lambda m, x, y: torch.add(2, torch.mul(y, 2))), Match)
    assert isinstance(matched(same, lambda m, x, y: torch.add(1, torch.mul(y, True))), Mismatch)
    assert isinstance(matched(same, lambda m, x, y: torch.add(F.relu(x), torch.mul(y, F.relu(x)))), Mismatch)


class WiderConv(nn.Conv2d):
    """Changes nothing of what is computed."""

    note = "mine"


class ScaledConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("module", "target", "fits"),
    [
        (nn.Conv2d(3, 3, 1), nn.Conv2d, True),
        (WiderConv(3, 3, 1), nn.Conv2d, True),
        (WiderConv(3, 3, 1), WiderConv, True),
        (nn.Conv2d(3, 3, 1), WiderConv, False),
        (nn.Conv1d(3, 3, 1), nn.Conv2d, False),
        (ScaledConv(3, 3, 1), nn.Conv2d, False),
        (ScaledConv(3, 3, 1), ScaledConv, True),
    ],
)
def test_modules_match_on_what_they_compute(module, target, fits):
    graph = Graph()
    graph.output(graph.call_module("0", (graph.placeholder("x"),)))
    node = next(node for node in GraphModule(nn.Sequential(module), graph).graph.nodes if node.op == "call_module")
    assert isinstance(match(Pattern("p", op(target)(tensor("x"))), node), Match if fits else Mismatch)


class Handler:
    def observe(self, node, env):
        """See nothing."""

    def quantize(self, quantizer, node, load_arg):
        return NotImplemented


def test_the_inputs_of_a_handler_are_whatever_lies_outside():
    pattern = Pattern("mine", op(torch.add)(op(torch.mul)(), op(F.relu)()), inputs=(), handler=Handler)
    found = matched(pattern, lambda m, x, y: torch.add(torch.mul(x, y), F.relu(x)))
    assert names(found) == (("mul", "relu", "add"), {"x0": "x", "x1": "y"})
    assert found.inputs == ("x0", "x1")


def test_a_value_read_twice_by_the_match_is_one_node():
    pattern = Pattern("twice", op(torch.add)(op(F.relu)(), op(F.relu)()), inputs=(), handler=Handler)
    found = matched(pattern, lambda m, x, y: (lambda r: torch.add(r, r))(F.relu(x)))
    assert names(found) == (("relu", "add"), {"x0": "x"})


def test_placeholders_outputs_and_attributes_are_no_calls():
    graph = symbolic_trace(Net(lambda m, x, y: operator.neg(x))).graph
    for node in graph.nodes:
        if node.op != "call_function":
            assert isinstance(match(Pattern("p", op("x", "output")(), inputs=()), node), Mismatch)


class OwnConv(nn.Conv2d):
    """Changes nothing."""


def test_the_index_finds_what_fits_and_the_larger_first():
    graph = Graph()
    conv = graph.call_module("0", (graph.placeholder("x"),))
    graph.call_function(F.relu, (conv,))
    unknown = graph.call_function(len, (conv,))
    graph.call_module("1", (conv,))
    GraphModule(nn.Sequential(OwnConv(3, 3, 1), nn.BatchNorm2d(3)), graph)
    mine = Pattern("mine", op(OwnConv)(tensor("x")))
    patterns = (*DEFAULT_PATTERNS, mine)
    index = PatternIndex(patterns)
    for node in graph.nodes:
        found = index.ending_in(node)
        fitting = [p for p in patterns if isinstance(match(p, node), Match)]
        assert [p for p in found if p in fitting] == sorted(fitting, key=lambda p: -p.root.size)
        assert [p.root.size for p in found] == sorted((p.root.size for p in found), reverse=True)
    assert mine in index.ending_in(conv)
    assert index.ending_in(unknown) == ()
