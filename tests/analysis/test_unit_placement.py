"""Which units stay float: the least sum of times and borders, against brute force."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fxquant as fxq
from fxquant.analysis.unit_placement import (
    FLOAT,
    MINIMUM_SPEEDUP,
    NEVER,
    Network,
    Times,
    ValueUse,
    flows,
    tuned_units,
    units_in_float,
)


class Net(nn.Module):
    """A branch, a sum, two tensors made at once, and a float operator behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        a = self.a(x)
        b = self.b(a) + a
        left, right = self.c(b).chunk(2, 1)
        return F.log_softmax(self.d(torch.cat([right, left], 1)), 1)


@pytest.fixture(scope="module")
def prepared():
    return fxq.prepare(Net().eval(), torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))


def names(prepared) -> list[str]:
    return [unit.root for unit in tuned_units(prepared.plan)]


def made_up(prepared, int8=1.0, real=2.0, border=0.0, **special) -> Times:
    """The same times for all units, but for those that are named: (int8, float)."""
    units, values = names(prepared), [flow.value for flow in flows(prepared.graph_module, prepared.plan)]
    return Times(
        {name: special.get(name, (int8, real))[0] for name in units},
        {name: special.get(name, (int8, real))[1] for name in units},
        dict.fromkeys(values, border),
        dict.fromkeys(values, border),
    )


def chosen(prepared, times) -> set[str]:
    return units_in_float(prepared.graph_module, prepared.plan, times)


def price(prepared, times, in_float) -> float:
    """What the choice costs, written down anew."""
    is_float = {name: name in in_float for name in names(prepared)} | {FLOAT: True}
    total = sum(times.in_float[n] * MINIMUM_SPEEDUP if n in in_float else times.in_int8[n] for n in names(prepared))
    for flow in flows(prepared.graph_module, prepared.plan):
        if flow.several:
            total += sum(1e9 for reader in flow.readers if is_float[reader] != is_float[flow.producer])
        elif is_float[flow.producer]:
            total += times.quantize[flow.value] * (not all(is_float[reader] for reader in flow.readers))
        else:
            total += times.dequantize[flow.value] * any(is_float[reader] for reader in flow.readers)
    return total


def test_flows(prepared):
    assert list(flows(prepared.graph_module, prepared.plan)) == [
        ValueUse("x", FLOAT, ("a",), False),
        ValueUse("a", "a", ("b", "add"), False),
        ValueUse("b", "b", ("add",), False),
        ValueUse("add", "add", ("c",), False),
        ValueUse("c", "c", ("chunk",), False),
        ValueUse("chunk", "chunk", ("getitem", "getitem_1"), True),
        ValueUse("getitem", "getitem", ("cat",), False),
        ValueUse("getitem_1", "getitem_1", ("cat",), False),
        ValueUse("cat", "cat", ("d",), False),
    ]


def test_what_is_faster_in_int8_stays_int8(prepared):
    assert chosen(prepared, made_up(prepared)) == set()
    assert chosen(prepared, made_up(prepared, int8=1.0, real=1.0)) == set()  # about as fast


def test_what_is_faster_in_float_stays_float(prepared):
    assert chosen(prepared, made_up(prepared, b=(4.0, 1.0))) == {"b"}
    assert chosen(prepared, made_up(prepared, int8=2.0, real=1.0)) == set(names(prepared))


def test_a_lone_float_unit_does_not_pay_its_borders(prepared):
    assert chosen(prepared, made_up(prepared, border=2.0, b=(3.0, 1.0))) == set()


def test_neighbours_decide_together(prepared):
    """Each alone wins less than its borders cost; both have only the outer borders."""
    times = made_up(prepared, border=2.0, int8=1.0, real=2.0, a=(3.0, 1.0), b=(3.0, 1.0), add=(3.0, 1.0))
    assert chosen(prepared, times) == {"a", "b", "add"}


def test_several_tensors_made_at_once_go_with_all_that_take_one(prepared):
    assert chosen(prepared, made_up(prepared, chunk=(9.0, 1.0))) == {"chunk", "getitem", "getitem_1"}
    assert chosen(prepared, made_up(prepared, chunk=(2.5, 1.0))) == set()


MICROSECONDS = st.integers(0, 30).map(lambda n: n / 1e6)


def assert_cheapest(prepared, data):
    units = names(prepared)
    values = [flow.value for flow in flows(prepared.graph_module, prepared.plan)]
    drawn = [{name: data.draw(MICROSECONDS) for name in keys} for keys in (units, units, values, values)]
    times = Times(*drawn)
    sets = ({n for n, bit in zip(units, bits, strict=True) if bit} for bits in product((0, 1), repeat=len(units)))
    least = min(price(prepared, times, each) for each in sets)
    assert price(prepared, times, chosen(prepared, times)) == pytest.approx(least, abs=1e-8)  # whole nanoseconds


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_choice_is_the_cheapest(prepared, data):
    assert_cheapest(prepared, data)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_many_choices_are_the_cheapest(prepared, data):
    assert_cheapest(prepared, data)


def test_weights_that_are_only_stored_are_not_tuned():
    config = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, fxq.float_qparams_weight_only_qconfig)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)).eval()
    plan = fxq.prepare(model, torch.tensor([1, 2]), config).plan
    assert [unit.pattern for unit in plan.units] == ["embedding", "linear"]
    assert [unit.pattern for unit in tuned_units(plan)] == ["linear"]


NODES = ("s", "a", "b", "c", "d", "t")
EDGES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES), st.integers(0, 20)), max_size=20)


def capacity_of_cut(edges, side) -> int:
    return sum(capacity for start, end, capacity in edges if start in side and end not in side)


def cheapest(edges) -> tuple[int, set[str]]:
    """The least capacity_of_cut, and the largest source's side that has it."""
    inner = NODES[1:-1]
    sides = [{"s", *(n for n, chosen in zip(inner, bits, strict=True) if chosen)} for bits in product((0, 1), repeat=4)]
    least = min(capacity_of_cut(edges, side) for side in sides)
    return least, set().union(*(side for side in sides if capacity_of_cut(edges, side) == least))


@settings(deadline=None)
@given(EDGES)
def test_the_cheapest_cut_with_the_largest_side(edges):
    network = Network()
    for node in NODES[1:]:
        network.add("s", node, 0)  # so that it is known
    for edge in edges:
        network.add(*edge)
    side = network.cut("s", "t")
    assert (capacity_of_cut(edges, side), side) == cheapest(edges)


def test_an_edge_that_is_never_cut_ties_its_ends():
    network = Network()
    network.add("s", "a", 1)
    network.add("b", "t", 3)
    network.add("a", "b", NEVER)
    assert network.cut("s", "t") == {"s"}


def test_no_path_leaves_everything_with_the_source():
    network = Network()
    network.add("s", "a", 5)
    network.add("b", "t", 0)
    assert network.cut("s", "t") == {"s", "a", "b"}
