"""Operators that hide others, written as those: the same values, in every spelling, or a reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.capture.tracing import trace
from fxquant.graph.decompositions.composites import (
    BROADCAST,
    COMPOSITES,
    COMPUTED,
    DIAGONAL,
    MANY,
    SPELLING,
    Operand,
    emit_contraction,
    read_equation,
)
from fxquant.graph.edit import Emitter
from fxquant.graph.query import VALUE
from fxquant.graph.shapes import record_values
from fxquant.passes.base import PassContext
from fxquant.passes.normalize import normalize

CLOSE = 1e-5
"""Of float32 values near 1: sums in another order."""

M = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
B = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1))


class Body(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.body = body

    def forward(self, m, b):
        return self.body(m, b)


def emitted(body, *inputs):
    """The graph with the parts in place of the composite, or why there are none."""
    gm = trace(Body(body), example_args=inputs)
    ctx: PassContext | None = None
    normalize(gm, ctx)
    node = next(node for node in gm.graph.nodes if node.target in COMPOSITES)
    new = COMPOSITES[node.target].emit(Emitter(gm, node), node, lambda node: False)
    if isinstance(new, Node):
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        gm.recompile()
        return gm
    return new


@pytest.mark.parametrize(
    "body",
    [
        lambda m, b: torch.einsum("ij,jk", m, m),
        lambda m, b: torch.einsum("ki,jk", m, m),
        lambda m, b: torch.einsum("i...,i...->...", m, m),
        lambda m, b: torch.einsum("...ij,jk->...ik", b, m),
        lambda m, b: torch.einsum("...ij,jk->ik", b, m),
        lambda m, b: torch.einsum("...j,k...", b, m),
        lambda m, b: torch.einsum("...->...", m),
        lambda m, b: torch.einsum(" b i j , b k j -> b i k ", [b, b]),
        lambda m, b: torch.mv(m, m[0]),
        lambda m, b: torch.dot(m[0], m[1]),
        lambda m, b: m[0].vdot(m[1]),
        lambda m, b: torch.inner(b, m),
        lambda m, b: torch.inner(b, m[0, 0]),
        lambda m, b: torch.tensordot(b, m, dims=1),
        lambda m, b: torch.tensordot(m, m),
        lambda m, b: torch.tensordot(b, m, dims=([1], [-1])),
        lambda m, b: torch.tensordot(b, m, 0),
        lambda m, b: torch.outer(m[0], m[1]),
        lambda m, b: torch.addmm(m, m, m, beta=2, alpha=0.5),
        lambda m, b: m.addmm(m, m, beta=0),
        lambda m, b: m.clone().addmm_(m, m),
        lambda m, b: torch.baddbmm(m, b, b, alpha=3),
        lambda m, b: m.addbmm(b, b),
        lambda m, b: torch.addmv(m[0], m, m[1]),
        lambda m, b: torch.addr(m, m[0], m[1], alpha=2),
        lambda m, b: torch.addcmul(m, m, m[0], value=0.3),
        lambda m, b: torch.lerp(m, m[0], 0.3),
        lambda m, b: m.lerp(m[0], m[1]),
        lambda m, b: F.glu(b[:, :2], 1),
    ],
)
def test_the_parts_give_the_same(body):
    gm = emitted(body, M, B)
    torch.testing.assert_close(gm(M, B), body(M, B), atol=CLOSE, rtol=0)
    assert not any(node.target in COMPOSITES for node in gm.graph.nodes)
    said = {node.name: str(node.meta[VALUE]) for node in gm.graph.nodes if node.op.startswith("call")}
    record_values(gm, (M, B), {})
    assert said == {node.name: str(node.meta[VALUE]) for node in gm.graph.nodes if node.op.startswith("call")}


def test_a_sum_that_counts_for_nothing_is_not_read():
    """``beta=0`` ignores the tensor, whatever it holds."""
    nan = torch.full((3, 3), float("nan"))
    gm = emitted(lambda m, b: torch.addmm(b, m, m, beta=0), M, nan)
    assert torch.equal(gm(M, nan), M @ M)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda m, b: torch.einsum("ij,jk,kl->il", m, m, m), MANY),
        (lambda m, b: torch.einsum(m, [0, 1], m, [1, 2]), SPELLING),
        (lambda m, b: torch.addmm(m, m, m, alpha=b.size(0)), COMPUTED),
        (lambda m, b: torch.tensordot(b, b, [[b.dim() - 1], [2]]), COMPUTED),
        (lambda m, b: F.glu(b[:, :2], m.size(0) - 2), COMPUTED),
    ],
)  # fmt: skip
def test_what_is_not_taken_apart_has_a_reason(body, reason):
    assert emitted(body, M, B) == reason


@pytest.mark.parametrize(
    ("equation", "ranks", "labels", "output"),
    [
        ("ij,jk->ik", [2, 2], ["ij", "jk"], "ik"),
        ("bA,Ba", [2, 2], ["bA", "Ba"], "ABab"),
        ("ij,ji", [2, 2], ["ij", "ji"], ""),
        ("...i,i...", [3, 2], ["21i", "i1"], "21"),
        ("...i->...", [1], ["i"], ""),
        ("a...b->b", [4], ["a21b"], "b"),
    ],
)
def test_an_equation_is_read_as_torch_reads_it(equation, ranks, labels, output):
    assert read_equation(equation, ranks) == ([tuple(own) for own in labels], tuple(output))


CLOSE_IN_DOUBLE = 1e-12
"""Of float64: sums of at most 64 products of values near 1, taken in another order."""

LETTERS = "abcdef"


class Einsum(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, *operands: Tensor) -> Tensor:
        return torch.einsum(self.equation, *operands)


def rewritten(equation: str, *operands: Tensor, constant: int | None = None) -> GraphModule | str:
    """The graph of an einsum, of which one operand may count as constant, with what takes its place."""
    gm = trace(Einsum(equation), example_args=operands)
    node = next(node for node in gm.graph.nodes if node.target is torch.einsum)
    left, _, output = equation.partition("->")
    factors = [
        Operand(x, tuple(labels), i == constant)
        for i, (x, labels) in enumerate(zip(node.args[1:], left.split(","), strict=True))
    ]
    new = emit_contraction(Emitter(gm, node), factors, tuple(output))
    if isinstance(new, str):
        return new
    node.replace_all_uses_with(new)
    gm.graph.erase_node(node)
    gm.recompile()
    return gm


@st.composite
def equations(draw) -> str:
    """Two operands of one to four indices each, and an output that keeps any of them in any order."""
    first, second = (draw(st.permutations(LETTERS))[: draw(st.integers(1, 4))] for _ in range(2))
    every = sorted({*first, *second})
    output = draw(st.permutations(draw(st.lists(st.sampled_from(every), unique=True))))
    return f"{''.join(first)},{''.join(second)}->{''.join(output)}"


def operands_of(equation: str, sizes: dict[str, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    terms = equation.partition("->")[0].split(",")
    return [torch.rand([sizes[x] for x in term], generator=generator, dtype=torch.float64) for term in terms]


def assert_einsum(equation, constant):
    sizes = dict(zip(LETTERS, (2, 3, 4, 2, 1, 3), strict=True))
    operands = operands_of(equation, sizes)
    gm = rewritten(equation, *operands, constant=constant)
    assert isinstance(gm, GraphModule)
    said = {node.name: node.meta[VALUE] for node in gm.graph.nodes if node.op.startswith("call")}
    torch.testing.assert_close(gm(*operands), torch.einsum(equation, *operands), atol=CLOSE_IN_DOUBLE, rtol=0)
    record_values(gm, operands, {})
    for node in gm.graph.nodes:
        if node.op.startswith("call"):
            assert str(said[node.name]) == str(node.meta[VALUE])
    if constant is None:
        others = operands_of(equation, {letter: size + 1 for letter, size in sizes.items()})
        torch.testing.assert_close(gm(*others), torch.einsum(equation, *others), atol=CLOSE_IN_DOUBLE, rtol=0)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, derandomize=True)
@given(equations(), st.sampled_from([None, 0, 1]))
def test_it_is_the_einsum_also_of_other_sizes(equation, constant):
    assert_einsum(equation, constant)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, derandomize=True)
@given(equations(), st.sampled_from([None, 0, 1]))
def test_many_are_the_einsum_also_of_other_sizes(equation, constant):
    assert_einsum(equation, constant)


@pytest.mark.parametrize(
    ("equation", "calls"),
    [
        ("bik,bkj->bij", ["matmul"]),
        ("bkj,bik->bij", ["matmul"]),  # rows come before columns in the output, so the factors change places
        ("ik,kj->ij", ["matmul"]),
        ("bhik,kj->bhij", ["matmul"]),
        ("k,k->", ["matmul"]),
        ("ik,k->i", ["matmul"]),
        ("ij,ij->ij", ["mul"]),
        ("bqhd,bkhd->bhqk", ["permute", "permute", "matmul"]),
        ("ij->ji", ["permute"]),
        ("ij->", ["sum"]),
    ],
)
def test_nothing_is_written_that_is_not_needed(equation, calls):
    gm = rewritten(equation, *operands_of(equation, dict.fromkeys("bhijkqd", 2)))
    assert isinstance(gm, GraphModule)
    names = [getattr(node.target, "__name__", "") for node in gm.graph.nodes if node.op == "call_function"]
    assert [name for name in names if hasattr(torch, name)] == calls


@pytest.mark.parametrize("constant", [0, 1])
def test_a_constant_is_the_second_factor_and_a_matrix(constant):
    equation = ("k,ik->i", "ik,k->i")[constant]
    gm = rewritten(equation, *operands_of(equation, {"i": 3, "k": 4}), constant=constant)
    assert isinstance(gm, GraphModule)
    *_, product, squeezed, _ = gm.graph.nodes
    assert [node.target for node in (product, squeezed)] == [torch.matmul, torch.squeeze]
    assert [node.meta[VALUE].shape for node in product.args] == [(3, 4), (4, 1)]


def test_sizes_of_one_stretch_in_a_batch_but_not_in_a_sum():
    x, y = torch.rand(1, 3, 4), torch.rand(2, 4, 5)
    gm = rewritten("bij,bjk->bik", x, y)
    assert isinstance(gm, GraphModule)
    torch.testing.assert_close(gm(x, y), torch.einsum("bij,bjk->bik", x, y))
    assert rewritten("ij,jk->ik", torch.rand(3, 1), torch.rand(4, 5)) == BROADCAST


def test_a_diagonal_is_no_product():
    assert rewritten("ii,ij->ij", torch.rand(3, 3), torch.rand(3, 4)) == DIAGONAL
