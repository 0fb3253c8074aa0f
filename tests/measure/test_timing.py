"""What is timed and how often, never how long it takes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.analysis.unit_placement import tuned_units
from fxquant.graph.query import info_of
from fxquant.kernels.library import available_isas
from fxquant.measure import timing
from fxquant.measure.timing import BoundaryTimer, UnitTimer, interleaved_medians, recorded, seconds_of
from fxquant.plan.spec import QParams, QScheme
from fxquant.runtime import engine_of

needs_native = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")
QPARAMS = QParams(
    QScheme(bits=8, signed=False, symmetric=False), torch.tensor([0.1]), torch.tensor([7], dtype=torch.int32)
)


def test_a_call_is_timed_after_one_that_is_not():
    calls = []
    assert seconds_of(lambda: calls.append("call")) >= 0
    assert calls == ["call", "call"]


def test_contestants_take_turns():
    calls = []
    found = interleaved_medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "a", "b", "b"] * 2
    assert list(found) == ["a", "b"]


@needs_native
def test_a_recorded_call_gives_the_same():
    x = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    table = torch.arange(256, dtype=torch.int32).flip(0).to(torch.uint8)
    run = recorded(lambda: fxq.kernels.table(x, table), [x], repeats=3)
    other = x.flip(0).contiguous()
    assert torch.equal(run([other])[0], table[other.long()])


@needs_native
def test_what_cannot_be_recorded():
    x = torch.rand(4)
    assert recorded(lambda: torch.exp(x), [x]) is None
    assert recorded(lambda: x, [nn.Parameter(x)]) is None
    with pytest.raises(ZeroDivisionError):
        recorded(lambda: 1 / 0, [x])
    assert recorded(lambda: x.view(2, 2), [x])([x]) is None  # a view takes no time: there is nothing to run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout()

    def forward(self, x):
        return self.drop(torch.relu(self.bn(self.conv(x)))).flatten(1).exp()


@pytest.mark.parametrize("engine", [pytest.param("program", marks=needs_native), "graph"])
def test_every_unit_gets_its_times(engine):
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(Net().eval(), x), [x], progress=False)
    int8 = fxq.convert(prepared, engine=engine)
    units = tuned_units(prepared.plan)
    assert units
    timer = UnitTimer(prepared.graph_module, int8, units, {"x": x}, engine_of(int8) is not None)
    for _ in range(2):
        timer.round()
    for times in (timer.in_int8, timer.in_float):
        assert list(times) == [unit.root for unit in units]
        assert all(0 <= seconds < math.inf for seconds in times.values())
    assert timer.infos["bn"].shape == (2, 8, 6, 6)
    assert timer.infos["conv"].shape == (2, 8, 6, 6)


def test_a_unit_is_what_its_nodes_take_together(monkeypatch):
    monkeypatch.setattr(timing, "seconds_of", lambda call, on_gpu=False: 1.0)
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(Net().eval(), x), [x], progress=False)
    units = tuned_units(prepared.plan)
    timer = UnitTimer(prepared.graph_module, fxq.convert(prepared, engine="graph"), units, {"x": x}, False)
    timer.round()
    assert timer.in_float == {unit.root: float(len(unit.nodes)) for unit in units}
    assert max(timer.in_float.values()) == 3.0
    assert set(timer.in_int8.values()) <= {0.0, 1.0}


@pytest.mark.parametrize("programs", [pytest.param(True, marks=needs_native), False])
def test_borders_of_one_shape_are_measured_once(programs, monkeypatch):
    measured = []
    monkeypatch.setattr(timing, "interleaved_medians", lambda calls, *_: measured.append(calls) or {"": 2.0})
    timer = BoundaryTimer(programs, 3)
    info = info_of(torch.rand(1, 2, 3, 4))
    assert timer.seconds(info, QPARAMS) == timer.seconds(info, QPARAMS) == (2.0, 2.0)
    assert len(measured) == 2
    assert timer.seconds((info, info), QPARAMS) == (0.0, 0.0)
    for calls in measured:
        calls[""]()


def test_borders_are_those_of_the_graph():
    assert all(
        0 < seconds < math.inf for seconds in BoundaryTimer(False, 1).seconds(info_of(torch.rand(3, 5)), QPARAMS)
    )
