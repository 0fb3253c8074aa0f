"""The ways to run a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, symbolic_trace

from fxquant.errors import InputError
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import nodes_by_name
from fxquant.measure.runner import (
    OrderedNodes,
    Stepper,
    ValuesOnDemand,
    WeightsOnly,
    all_values,
    order_by_units,
    run_nodes,
)
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import QParams, QScheme


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


def test_the_nodes_of_a_unit_lie_side_by_side() -> None:
    order, places = order_by_units(symbolic_trace(Branches()), UNITS)
    assert [node.name for node in order] == ["x", "abs_1", "sqrt", "neg", "add"]
    assert places == [(UNITS[1], range(1, 3)), (UNITS[0], range(3, 5))]
    assert order_by_units(symbolic_trace(Branches()), ()) == ([], [])


def test_activations_may_stay_as_they_are() -> None:
    rounding = StaticFakeQuantize(QParams(QScheme(), torch.ones(1), torch.zeros(1, dtype=torch.int32)))
    graph = Graph()
    graph.output(graph.call_module("0", (graph.placeholder("input"),)))
    gm = GraphModule(nn.Sequential(rounding), graph)
    x = torch.tensor([0.3])
    assert WeightsOnly(gm, {"input": x}).run() is x


def test_a_part_of_a_graph_runs_on_given_values_with_a_call_replaced() -> None:
    nodes = nodes_by_name(symbolic_trace(Branches()))
    part = [nodes[name] for name in ("abs_1", "sqrt")]
    x = torch.tensor([-4.0, 9.0])
    assert run_nodes(part, {nodes["x"]: x}).tolist() == [2, 3]
    assert run_nodes(part, {nodes["x"]: x}, {nodes["abs_1"]: torch.square}).tolist() == [4, 9]


def test_values_that_nobody_reads_any_more_are_freed() -> None:
    gm = symbolic_trace(Branches())
    order, _ = order_by_units(gm, UNITS)
    env: dict[Any, Tensor] = {}
    value = OrderedNodes(order).advance(BoundInterpreter(gm, {"x": torch.ones(2)}), env, 0, 4)
    assert value.tolist() == [-1, -1]
    assert {node.name for node in env} == {"sqrt", "neg"}


def test_a_seed_makes_a_node_draw_the_same_numbers_in_every_run() -> None:
    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand_like(x)

    gm = symbolic_trace(Drawing())
    nodes, x = list(gm.graph.nodes), torch.zeros(8)
    first, second = (OrderedNodes(nodes, 7).advance(BoundInterpreter(gm, {"x": x}), {}, 0, 3) for _ in range(2))
    assert torch.equal(first, second)
    before = torch.get_rng_state()
    OrderedNodes(nodes[:1]).advance(BoundInterpreter(gm, {"x": x}), {}, 0, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_values_on_demand_run_as_far_as_they_are_asked_and_go_when_they_were_taken() -> None:
    gm = symbolic_trace(Branches())
    nodes = nodes_by_name(gm)
    run = ValuesOnDemand(gm, {"x": torch.full((2,), 4.0)}, {nodes["abs_1"]: 1})
    assert run.look(nodes["sqrt"]).tolist() == [2, 2]
    assert run.look(nodes["abs_1"]).tolist() == [4, 4]
    assert nodes["add"] not in run._run.env
    run.done_with(nodes["abs_1"])
    assert nodes["abs_1"] not in run._run.env


def _whole(gm: GraphModule, bound: dict[str, Any]) -> None:
    all_values(BoundInterpreter(gm, bound, keep_values=True))


def _in_parts(gm: GraphModule, bound: dict[str, Any]) -> None:
    OrderedNodes(list(gm.graph.nodes)).advance(BoundInterpreter(gm, bound), {}, 0, 3)


def _in_steps(gm: GraphModule, bound: dict[str, Any]) -> None:
    run = Stepper(gm, bound)
    for node in gm.graph.nodes:
        run.step(node)


@pytest.mark.parametrize("run", [_whole, _in_parts, _in_steps])
def test_a_node_that_fails_is_named_however_the_graph_runs(run: Callable[[GraphModule, dict[str, Any]], None]) -> None:
    with pytest.raises(InputError, match=r"this batch does not run through the model[\s\S]*neg"):
        run(symbolic_trace(Branches()), {"x": "text"})


def test_a_module_with_a_length_of_zero_is_a_module_all_the_same() -> None:
    class Empty(nn.Module):
        def __len__(self) -> int:
            return 0

        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    graph = Graph()
    graph.output(graph.call_module("0", (graph.placeholder("input"),)))
    gm = GraphModule(nn.Sequential(Empty()), graph)
    values: dict[Any, Any] = {node: torch.ones(2) for node in gm.graph.nodes if node.op == "placeholder"}
    (call,) = [node for node in gm.graph.nodes if node.op == "call_module"]
    assert run_nodes([call], values).tolist() == [2, 2]
