"""What nothing reads is removed, unless running it has an effect."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.backends.base import BACKENDS
from fxquant.capture.tracing import trace
from fxquant.errors import InputError
from fxquant.measure.parity import plan_of
from fxquant.passes.base import PassContext
from fxquant.passes.cleanup import eliminate_dead_code
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.dead = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.norm = nn.BatchNorm1d(3)
        self.counter = Counter()
        self.hooked = nn.ReLU()
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x, flag=None):
        y = self.used(x)
        _ = self.dead(y) + self.unused
        _ = self.norm(y)
        self.counter(y)
        self.hooked(y)
        y.view(-1).add_(1)
        return y


def cleaned(model, calls=None):
    gm = trace(model, example_args=(X,), leaf_types=(Counter,))
    gm = eliminate_dead_code(gm, PassContext(QuantPlan(), QConfigMapping(), BACKENDS["cpu"], ()))
    gm.graph.lint()
    gm.recompile()
    return gm


def test_only_what_has_an_effect_stays():
    model = Net().eval()
    model.hooked.register_forward_hook(lambda *_: None)
    gm = cleaned(model)
    called = [node.target for node in gm.graph.nodes if node.op in ("call_module", "call_method", "get_attr")]
    assert called == ["used", "counter", "hooked", "view", "add_"]
    assert sorted(name for name, _ in gm.named_children()) == ["counter", "hooked", "used"]
    assert torch.equal(gm(X), model(X))
    assert int(gm.counter.calls) == 1


def test_a_batch_norm_that_learns_stays():
    gm = cleaned(Net().train())
    assert "norm" in dict(gm.named_children())


def test_guards_stay():
    gm = cleaned(Net().eval())
    with pytest.raises(InputError, match="the argument 'flag' was fixed"):
        gm(X, flag=True)


class DeadCalls(nn.Module):
    """Quantized layers that nothing reads: one alone, one whose result another dead call takes, and a matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.dead, self.next, self.conv = nn.Linear(3, 3), nn.Linear(3, 3), nn.Conv1d(1, 2, 3)

    def forward(self, x):
        y = torch.relu(self.used(x))
        _ = torch.sigmoid(self.dead(x))
        _ = self.next(torch.relu(self.dead(y))).sum()
        _ = self.conv(y.unsqueeze(1))
        _ = torch.matmul(y, y.t())
        return self.last(y)


def dead_calls(bits=8):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DeadCalls().eval()
    mapping = None if bits == 8 else fxq.low_bit_qconfig(bits, bits, ends=None)
    return fxq.calibrate(fxq.prepare(model, X, mapping), [X], progress=False)


@pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
def test_the_plan_has_no_units_of_dead_calls(to):
    prepared = dead_calls()
    assert {"dead", "dead_1", "conv", "matmul"} < {name for unit in prepared.plan.units for name in unit.nodes}
    converted = fxq.convert(prepared, to=to)
    assert [unit.nodes for unit in plan_of(converted).units] == [("used", "relu"), ("last",)]


@pytest.mark.parametrize(
    ("tool", "bits", "options"),
    [
        (fxq.gptq, 8, {}),
        (fxq.correct_statistics, 8, {}),
        (fxq.adaround, 8, {"iterations": 2}),
        (fxq.reconstruct, 4, {"iterations": 2}),
        *(
            (fxq.search_precision, 8, {"budget": fxq.Budget(size=0.9), "candidates": ["W4A8", "W8A8"], "estimate": how})
            for how in ("alone", "gradient")
        ),
    ],
)
def test_dead_calls_are_neither_learned_nor_measured(tool, bits, options):
    found = tool(dead_calls(bits), [X], progress=False, **options)
    if isinstance(found, fxq.PrecisionSearch):
        dead = [row for row in found.rows if not {"used", "last"} & {*row.name.split(", ")}]
        assert dead
        assert all(row.noise == 0 for row in dead)
        return
    assert set() < set(found.weight_layers) <= {"last", "relu"}
    assert fxq.convert(found)(X).shape == (4, 2)
