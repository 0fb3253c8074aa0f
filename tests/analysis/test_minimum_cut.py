"""Minimum cuts against brute force over all ways to part the nodes."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fxquant.analysis.minimum_cut import NEVER, Network

NODES = ("s", "a", "b", "c", "d", "t")
EDGES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES), st.integers(0, 20)), max_size=20)


def price(edges, side) -> int:
    return sum(capacity for start, end, capacity in edges if start in side and end not in side)


def cheapest(edges) -> tuple[int, set[str]]:
    """The least price, and the largest source's side that has it."""
    inner = NODES[1:-1]
    sides = [{"s", *(n for n, chosen in zip(inner, bits, strict=True) if chosen)} for bits in product((0, 1), repeat=4)]
    least = min(price(edges, side) for side in sides)
    return least, set().union(*(side for side in sides if price(edges, side) == least))


@given(EDGES)
def test_the_cheapest_cut_with_the_largest_side(edges):
    network = Network()
    for node in NODES[1:]:
        network.add("s", node, 0)  # so that it is known
    for edge in edges:
        network.add(*edge)
    side = network.cut("s", "t")
    assert (price(edges, side), side) == cheapest(edges)


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
