"""Where integers begin and end: which matches are worth to be units, and which of these give real numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxquant as fxq
from fxquant.backends.base import BACKENDS, Backend
from fxquant.backends.cpu import CPU
from fxquant.measure.noise import sqnr
from fxquant.measure.parity import measure_parity
from fxquant.nn.base import FloatResult
from fxquant.passes.unit_choice import (
    IN_PARTS,
    ISOLATED,
    PART,
    READ_AS_FLOAT,
    RETURNED,
    RETURNED_UNROUNDED,
    UNREAD,
)
from fxquant.patterns.registry import unregister_pattern
from tests.outputs import rounding_outputs
from tests.sampling import one_of

FEATURES = 6
COSTS = "only float operators read it ({})"
UNROUNDED = 36.0
"""dB of a layer of 8 bits whose result is not rounded, on its input and its weight: 38 to 45."""


class Net(nn.Module):
    """A forward of one line over linear layers ``a``, ``b``, ``c`` and norms ``n``, ``o`` that stay float."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        for name in "abc":
            self.add_module(name, nn.Linear(FEATURES, FEATURES))
        self.n, self.o = nn.RMSNorm(FEATURES), nn.RMSNorm(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def prepare(body, **options) -> fxq.Quantizer:
    torch.manual_seed(0)
    return fxq.prepare(
        Net(body).eval(), torch.rand(4, FEATURES), **{"qconfig": rounding_outputs(), "strict": False, **options}
    )


def units(prepared: fxq.Quantizer) -> dict[str, bool]:
    """Root of each unit -> whether it has a grid for its result."""
    return {unit.root: "y" in unit.roles for unit in prepared.plan.units}


def reasons(prepared: fxq.Quantizer) -> dict[str, str]:
    """What stays float although it could be quantized."""
    return {r.node: r.reason for r in prepared.plan.refusals if r.excused}


def stream(m: Net, x: Tensor) -> Tensor:
    """The residual stream of a transformer: only norms and sums read it."""
    y = x + m.a(m.n(x))
    z = y + m.b(m.o(y))
    return m.c(m.n(z))


BODIES = {
    "a stream": (stream, {"a": False, "b": False, "c": True}, {"add": COSTS.format("RMSNorm, add")}),
    "behind a layer, before a norm": (
        lambda m, x: m.n(F.relu(m.a(x) * 2).flatten(1)),
        {"a": False},
        {"mul": COSTS.format("relu"), "relu": COSTS.format("flatten"), "flatten": COSTS.format("RMSNorm")},
    ),
    "before a layer": (lambda m, x: m.b(m.n(x) + x), {"add": True, "b": True}, {}),
    "through light ones to a layer": (
        lambda m, x: m.b(torch.cat([m.n(x), x]).relu()),
        {"cat": True, "relu": True, "b": True},
        {},
    ),
    "to a norm and to a layer": (
        lambda m, x: m.b(y := m.n(x) + x) + m.n(y),
        {"add": True, "b": True, "add_1": True},
        {},
    ),
    "given out": (lambda m, x: m.n(x) + x, {"add": True}, {}),
    "given out beside a norm": (lambda m, x: (y := m.a(x), m.n(y)), {"a": True}, {}),
    "given out in a dict": (lambda m, x: {"y": (y := m.n(x) + x), "n": m.n(y)}, {"add": True}, {}),
    "moved and given out": (lambda m, x: (m.a(x), m.n(x).flatten(1)), {"a": True}, {"flatten": ISOLATED}),
    "a split, one part to a layer": (
        lambda m, x: m.a((parts := F.silu(m.b(x)).chunk(2))[0]) + m.n(parts[1]),
        {"b": True, "silu": True, "chunk": True, "getitem": True, "a": True, "getitem_1": True, "add": True},
        {},
    ),
    "a split of a join, one part to a layer": (
        lambda m, x: m.a((parts := torch.cat([x, x]).chunk(2))[0]) + m.n(parts[1]),
        {"a": True, "add": True},
        {
            "cat": IN_PARTS,
            "chunk": COSTS.format("getitem"),
            "getitem": PART,
            "getitem_1": COSTS.format("RMSNorm"),
        },
    ),
    "a slice of a sum to a layer, all of it to a norm": (
        lambda m, x: m.b((y := m.a(x) + x)[:1]) + m.n(y),
        {"a": False, "b": True, "add_1": True},
        {"add": IN_PARTS, "getitem": PART},
    ),
    "a slice to a layer, the rest to a norm": (
        lambda m, x: m.b((y := torch.cat([m.a(x), x])).transpose(0, 1)[:, :2].transpose(0, 1)) + m.n(y[2:4]),
        {"a": False, "transpose_1": True, "b": True, "add": True},
        {"cat": IN_PARTS, "transpose": COSTS.format("getitem"), "getitem": PART, "getitem_1": COSTS.format("RMSNorm")},
    ),
    "a slice of a sum of it to a layer, all of it to a norm": (
        lambda m, x: m.b((F.relu((y := m.a(x) + x) + m.c(x)))[:1]) + m.n(y),
        {"a": False, "c": False, "b": True, "add_2": True},
        {"add": IN_PARTS, "relu": COSTS.format("getitem"), "getitem": PART},
    ),
    "all slices to layers, all of it to a norm": (
        lambda m, x: torch.cat([m.a((y := x + m.n(x))[:2]), m.b(y[2:])]).relu() + m.n(y),
        {"add": True, "getitem": True, "a": True, "getitem_1": True, "b": True, "cat": True, "relu": True, "add_1": True},  # noqa: E501
        {},
    ),
    "a slice of a function to a layer, all of it to a norm": (
        lambda m, x: m.b((y := F.gelu(m.a(x)))[:1]) + m.n(y),
        {"a": True, "gelu": True, "getitem": True, "b": True, "add": True},
        {},
    ),
    "a slice given out, another to a layer": (
        lambda m, x: (m.b((y := m.n(x) + x)[:2]), y[2:]),
        {"add": True, "getitem": True, "b": True, "getitem_1": True},
        {},
    ),
    "a split, no part to a layer": (
        lambda m, x: m.n((parts := m.a(x).chunk(2))[0]) * m.o(parts[1]),
        {"a": False, "mul": True},
        {"chunk": COSTS.format("getitem"), **dict.fromkeys(("getitem", "getitem_1"), COSTS.format("RMSNorm"))},
    ),
    "its shape is asked for": (lambda m, x: m.n(y := m.a(x)) * y.size(0), {"a": False}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_units_and_what_they_give(name):
    body, expected, excused = BODIES[name]
    prepared = prepare(body)
    assert units(prepared) == expected
    assert {node: reason for node, reason in reasons(prepared).items() if node in excused or not excused} == excused


@pytest.mark.parametrize("name", one_of(3, BODIES))
def test_every_form_agrees(name):
    prepared = prepare(BODIES[name][0])
    x = torch.randn(5, FEATURES)[:4]
    fxq.calibrate(prepared, [x], progress=False)
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    parity = measure_parity(int8, simulated, (x,))
    assert parity.breaches == ()
    assert {row.unit: row.gives == "int8" for row in parity}.items() <= units(prepared).items()


class ClassToken(nn.Module):
    """A token of its own beside others that are a hundred times as large; a layer reads it behind two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(0.01 * torch.randn(1, 1, FEATURES))
        self.a, self.b, self.head = (nn.Linear(FEATURES, FEATURES) for _ in range(3))
        self.n, self.o = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        y = y + 0.01 * self.a(self.n(y))
        first = self.b(y[:, 0:1])
        y = torch.cat([first, y[:, 1:]], 1)
        return self.head(self.o(y)[:, 0])


def test_a_class_token_beside_larger_ones_is_as_fine_as_they_are():
    torch.manual_seed(0)
    model, x = ClassToken().eval(), torch.randn(8, 16, FEATURES)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    assert reasons(prepared)["cat"] == COSTS.format("LayerNorm, add")
    assert reasons(prepared)["add"] == IN_PARTS
    int8 = fxq.convert(prepared, check=x)
    assert not int8.parity.breaches
    for form in (int8, *(fxq.convert(prepared, to=to) for to in ("fake_quant", "reference"))):
        assert sqnr(model(x).detach(), form(x)) > 30  # 1 where all tokens are rounded on one grid


def test_what_nothing_reads_is_not_worth_it():
    assert reasons(prepare(lambda m, x: (m.n(x) + x, m.a(x))[1])) == {"add": UNREAD}


def test_strict_mode_does_not_complain():
    net = Net(lambda m, x: m.b(F.gelu(m.a(x)) + x))
    net.n = net.o = nn.Identity()
    fxq.prepare(net.eval(), torch.rand(4, FEATURES), strict=True)
    only_moved = fxq.prepare(Net(lambda m, x: (m.a(x), x.flatten(0))).eval(), torch.rand(4, FEATURES), strict=True)
    assert reasons(only_moved) == {"flatten": RETURNED}


def test_a_value_without_a_grid_is_not_observed():
    assert {name for name in prepare(stream).observers if "@" not in name} == {"n", "o", "n_1", "c"}


def test_no_rounding_between_float_operators():
    int8 = fxq.convert(fxq.calibrate(prepared := prepare(stream), [torch.randn(8, FEATURES)], progress=False))
    called = [type(int8.get_submodule(n.target)).__name__ for n in int8.graph.nodes if n.op == "call_module"]
    assert called.count("Quantize") == len(prepared.plan.units)
    assert called.count("Dequantize") == 1
    assert int8.a.float_result == FloatResult(torch.float32, True)
    assert "a = QuantizedLinear(n_quantize)" in int8.snapshots[-3].after


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_real_numbers_come_in_the_dtype_of_the_model(dtype):
    torch.manual_seed(0)
    net, x = Net(stream).eval().to(dtype), torch.randn(8, FEATURES).to(dtype)
    prepared = fxq.calibrate(fxq.prepare(net, x), [x], progress=False)
    assert fxq.convert(prepared)(x).dtype == dtype
    assert fxq.convert(prepared).a.float_result.dtype == dtype
    assert fxq.convert(prepared).half().a.float_result.dtype == torch.float16


def test_a_back_end_that_cannot_give_real_numbers_gives_integers():
    rules = tuple(fxq.LoweringRule(rule.patterns, rule.build, rule.activation, rule.weight) for rule in CPU.rules)
    fxq.register_backend(Backend("integers only", rules))
    try:
        prepared = prepare(stream, qconfig=fxq.get_default_qconfig_mapping("cpu"), backend="integers only")
    finally:
        BACKENDS.remove("integers only")
    assert units(prepared) == {"a": True, "b": True, "c": True}


def test_a_handler_takes_integers():
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    @fxq.register_pattern(Doubled)
    class Handler:
        def observe(self, node, env) -> None:
            """It measures nothing."""

        def quantize(self, quantizer, node, load_arg):
            return NotImplemented

    try:
        net = Net(lambda m, x: m.n(m.doubled(m.a(x) + m.n(x))))
        net.doubled = Doubled()
        prepared = fxq.prepare(net.eval(), torch.rand(4, FEATURES))
    finally:
        unregister_pattern("Handler[Doubled]")
    assert units(prepared) == {"a": True, "add": True, "doubled": False}


class Rounding(Net):
    """The same with layer norms, which take real numbers and can give integers."""

    def __init__(self, body) -> None:
        super().__init__(body)
        self.n, self.o = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)


@pytest.mark.parametrize(
    ("body", "expected", "excused"),
    [
        (stream, {"n": True, "a": False, "o": True, "b": False, "n_1": True, "c": True}, {}),
        (lambda m, x: m.b(F.gelu(m.n(m.a(x)))), {"a": False, "n": True, "gelu": True, "b": True}, {}),
        (lambda m, x: m.b(y := m.n(x)).exp() + y.exp(), {"b": False, "add": True}, {"n": READ_AS_FLOAT}),
        (lambda m, x: m.n(m.a(x)), {"a": False}, {"n": RETURNED_UNROUNDED}),
        (lambda m, x: (m.b(y := m.n(x)), y), {"b": True}, {"n": READ_AS_FLOAT}),
        (lambda m, x: m.b(x) + m.n(x).exp(), {"b": True, "add": True}, {"n": COSTS.format("exp")}),
        (lambda m, x: (m.n(x), m.b(x))[1], {"b": True}, {"n": UNREAD}),
        (lambda m, x: m.b(m.n(y := m.a(x))) + m.c(y), {"a": True, "n": True, "b": True, "c": True, "add": True}, {}),
    ],
)
def test_what_takes_real_numbers_rounds_them_if_only_integers_are_read(body, expected, excused):
    torch.manual_seed(0)
    prepared = fxq.prepare(Rounding(body).eval(), torch.rand(4, FEATURES), rounding_outputs())
    assert units(prepared) == expected
    assert {node: reason for node, reason in reasons(prepared).items() if node in excused or not excused} == (
        excused or reasons(prepared)
    )
    x = torch.randn(4, FEATURES)
    fxq.calibrate(prepared, [x], progress=False)
    assert measure_parity(fxq.convert(prepared), fxq.convert(prepared, to="fake_quant"), (x,)).breaches == ()


RETURNED_ONLY = {
    "a layer": (lambda m, x: m.a(x), {"a": False}, {}),
    "an activated layer": (lambda m, x: m.a(x).relu(), {"relu": False}, {}),
    "a join": (lambda m, x: torch.cat([m.a(x) * 300, m.b(x)], 1), {"a": False, "b": False}, {"cat", "mul"}),
    "a join of joins, moved": (
        lambda m, x: torch.stack([torch.cat([m.a(x), m.b(x)], 1), m.c(x).repeat(1, 2)], 1).flatten(1),
        {"a": False, "b": False, "c": False},
        {"cat", "stack", "repeat", "flatten"},
    ),
    "a sum": (lambda m, x: m.a(x) + m.b(x), {"a": False, "b": False}, {"add"}),
    "a mean": (lambda m, x: m.a(x).mean(1), {"a": False}, {"mean"}),
    "a function": (lambda m, x: m.a(x).sigmoid(), {"a": False}, {"sigmoid"}),
    "a maximum": (lambda m, x: F.max_pool1d(m.a(x), 2), {"a": False}, {"max_pool1d"}),
    "a resize": (
        lambda m, x: F.interpolate(m.a(x).unsqueeze(1), scale_factor=2.0, mode="linear"),
        {"a": False},
        {"unsqueeze", "interpolate"},
    ),
    "in containers": (lambda m, x: {"y": (m.a(x), [m.b(x).relu()])}, {"a": False, "relu": False}, {}),
    "read by a layer, too": (lambda m, x: (y := m.a(x), m.b(y)), {"a": True, "b": False}, {}),
}  # fmt: skip
"""Forward -> its units, whether each rounds its result, and what stays float since only the model returns it."""


@pytest.mark.parametrize("name", RETURNED_ONLY)
def test_what_the_model_returns_is_float_and_not_rounded(name):
    body, expected, in_float = RETURNED_ONLY[name]
    prepared, x = prepare(body, qconfig=None), torch.randn(64, FEATURES)
    assert units(prepared) == expected
    assert {*reasons(prepared)} == {*in_float}
    fxq.calibrate(prepared, [x], progress=False)
    int8 = fxq.convert(prepared, check=x)
    assert not int8.parity.breaches
    forms = (prepared, int8, *(fxq.convert(prepared, to=to) for to in ("fake_quant", "reference")))
    with torch.no_grad():
        results = [pytree.tree_leaves(form(x)) for form in forms]
    for wanted, got, simulated, reference in zip(*results, strict=True):
        assert sqnr(wanted, got) > UNROUNDED
        torch.testing.assert_close(simulated, got, rtol=0, atol=1e-5 * float(wanted.abs().max()))
        torch.testing.assert_close(reference, got, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def test_each_part_of_a_returned_join_is_as_fine_as_alone():
    prepared, x = prepare(RETURNED_ONLY["a join"][0], qconfig=None), torch.randn(64, FEATURES)
    boxes, scores = fxq.convert(fxq.calibrate(prepared, [x], progress=False))(x).split(FEATURES, 1)
    wanted = prepared(x).split(FEATURES, 1)
    assert sqnr(wanted[0], boxes) > UNROUNDED
    assert sqnr(wanted[1], scores) > UNROUNDED


def test_training_rounds_nothing_that_is_only_returned():
    torch.manual_seed(0)
    x = torch.randn(64, FEATURES)
    net = Net(RETURNED_ONLY["a join"][0])
    del net.c, net.n, net.o
    qat = fxq.prepare_qat(net, x)
    qat(x)
    assert {ref.name for ref in qat.quant_plan.fake_quants if ref.kind == "activation"} == {"x"}
    trained = qat.eval()(x).detach()
    torch.testing.assert_close(fxq.convert(qat)(x), trained, rtol=0, atol=1e-5 * float(trained.abs().max()))
