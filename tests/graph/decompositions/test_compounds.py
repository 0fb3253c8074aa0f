"""Operators that hide others, written as those: the same values, in every spelling, or a reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.capture.tracing import trace
from fxquant.graph.decompositions.compounds import COMPOUNDS, COMPUTED, MANY, SPELLING, read_equation
from fxquant.graph.emit import Emitter
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
    """The graph with the parts in place of the compound, or why there are none."""
    gm = trace(Body(body), example_args=inputs)
    ctx: PassContext | None = None
    normalize(gm, ctx)
    node = next(node for node in gm.graph.nodes if node.target in COMPOUNDS)
    new = COMPOUNDS[node.target].emit(Emitter(gm, node), node, lambda node: False)
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
    assert not any(node.target in COMPOUNDS for node in gm.graph.nodes)
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
