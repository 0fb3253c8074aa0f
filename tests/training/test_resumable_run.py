"""Batches go through a graph in parts, and hold no more than what the rest reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

from fxquant.errors import InputError
from fxquant.graph.shapes import BoundInterpreter
from fxquant.measure.runner import order_by_units
from fxquant.plan.quant_plan import QuantUnit
from fxquant.training.resumable_run import ResumableRun
from fxquant.training.spill_store import Memory


class Branches(nn.Module):
    """The parts of two units, one inside the other: a and d, b and c."""

    def forward(self, x: Tensor) -> Any:
        a = torch.neg(x)
        b = torch.abs(x)
        c = torch.sqrt(b)
        d = torch.add(a, c)
        return torch.exp(d), x


def unit(*nodes: str) -> QuantUnit:
    return QuantUnit("pattern", nodes, {}, (), {})


UNITS = (unit("neg", "add"), unit("abs_1", "sqrt"))


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_parts_of_a_run_are_the_run(limit: int) -> None:
    gm = symbolic_trace(Branches())
    order, places = order_by_units(gm, UNITS)
    inputs = [{"x": torch.randn(2048)} for _ in range(3)]
    with Memory(limit) as memory:
        lane = ResumableRun(BoundInterpreter(gm, {}), order, inputs, memory)
        for _, place in places:
            for batch, bound in enumerate(inputs):
                lane.advance(batch, place.start)
                value = lane.advance(batch, place.stop)
                expected = {3: bound["x"].abs().sqrt(), 5: bound["x"].abs().sqrt() - bound["x"]}[place.stop]
                assert torch.equal(value, expected)
        assert (memory.files > 0) == (limit == 0)


def test_only_what_is_read_further_on_is_kept() -> None:
    gm = symbolic_trace(Branches())
    order, _ = order_by_units(gm, UNITS)
    with Memory(1 << 20) as memory:
        lane = ResumableRun(BoundInterpreter(gm, {}), order, [{"x": torch.randn(8)}], memory)
        kept = []
        for stop in range(1, len(order) + 1):
            lane.advance(0, stop)
            kept.append({node.name for node in lane.values(0)})
        assert kept == [{"x"}, {"x", "abs_1"}, {"x", "sqrt"}, {"sqrt", "neg"}, set()]
        assert lane.advance(0, 2) is None  # it has been there


def test_a_batch_that_does_not_run_is_named() -> None:
    gm = symbolic_trace(Branches())
    order, _ = order_by_units(gm, UNITS)
    with Memory(0) as memory:
        lane = ResumableRun(BoundInterpreter(gm, {}), order, [{"x": "text"}], memory)
        with pytest.raises(InputError, match=r"this batch does not run through the model[\s\S]*abs"):
            lane.advance(0, len(order))
