"""Operators that hide others, each with what writes it as those: einsum, addmm, a gated linear unit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.decompositions.contraction import Labels, Operand, emit_contraction
from fxquant.graph.emit import Emitter
from fxquant.graph.query import value_of

IsConstant = Callable[[Node], bool]
Emit = Callable[[Emitter, Node, IsConstant], Node | str]

MANY = "a product of three or more tensors has no integer operator; written as products of two it has"
SPELLING = "of einsum only an equation with tensors behind it is understood: torch.einsum('ij,jk->ik', a, b)"
COMPUTED = "an argument beside its tensors is computed at run time, so it is not taken apart"


@dataclass(frozen=True, slots=True)
class Compound:
    """How one operator is taken apart."""

    emit: Emit
    """Writes the parts; the node of the result, or why this call cannot be written so."""
    parts: tuple[Any, ...]
    """Operators of which one must be quantized for it to be worth it."""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and value_of(value) is not None


def _einsum(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
    arguments: Any = node.args
    equation, *operands = arguments
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or node.kwargs or not all(map(_is_tensor, operands)):
        return SPELLING
    if len(operands) > 2:
        return MANY
    labels, output = read_equation(equation, [_rank(operand) for operand in operands])
    factors = [Operand(x, own, is_constant(x)) for x, own in zip(operands, labels, strict=True)]
    return emit_contraction(emit, factors, output)


def read_equation(equation: str, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """Labels of the dimensions of all operands, and of the result, of an equation that torch.einsum took."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    rest = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    labels = [_labels(term, count) for term, count in zip(terms, rest, strict=True)]
    if not arrow:  # then it is all that stands once, in the order of the alphabet, behind what "..." stands for
        right = "..." + "".join(letter for letter in sorted({*left} - {".", ","}) if left.count(letter) == 1)
    return labels, _labels(right, max(rest))


def _labels(term: str, rest: int) -> Labels:
    before, dots, behind = term.partition("...")
    return (*before, *(str(i) for i in range(rest if dots else 0, 0, -1)), *behind)


def _rank(node: Any) -> int:
    info = value_of(node)
    assert info is not None  # _is_tensor saw to it
    return len(info.shape)


def _product_of(first: str, second: str, output: str) -> Emit:
    """The operator that an equation stands for."""

    def emit_product(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
        arguments: Any = node.args
        a, b = arguments
        factors = [Operand(a, tuple(first), is_constant(a)), Operand(b, tuple(second), is_constant(b))]
        return emit_contraction(emit, factors, tuple(output))

    return emit_product


def _inner(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
    """Sums over the last dimension of both; of a tensor without dimensions, it is the product."""
    a, b = node.args
    if 0 in map(_rank, (a, b)):
        return emit.function(torch.mul, a, b)
    return _over(emit, a, b, (-1,), (-1,), is_constant)


def _tensordot(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
    arguments: Any = node.args
    a, b, dims = arguments
    if isinstance(dims, int):
        return _over(emit, a, b, tuple(range(-dims, 0)), tuple(range(dims)), is_constant)
    if not isinstance(dims, (list, tuple)) or not all(isinstance(one, (list, tuple)) for one in dims):
        return COMPUTED
    return _over(emit, a, b, tuple(dims[0]), tuple(dims[1]), is_constant)


def _over(
    emit: Emitter, a: Any, b: Any, first: tuple[Any, ...], second: tuple[Any, ...], is_constant: IsConstant
) -> Node | str:
    if not all(isinstance(dim, int) for dim in (*first, *second)):
        return COMPUTED
    a_labels, b_labels = [f"a{i}" for i in range(_rank(a))], [f"b{i}" for i in range(_rank(b))]
    for i, j in zip(first, second, strict=True):
        b_labels[j] = a_labels[i]
    output = tuple(label for label in (*a_labels, *b_labels) if (label in a_labels) != (label in b_labels))
    factors = [Operand(a, tuple(a_labels), is_constant(a)), Operand(b, tuple(b_labels), is_constant(b))]
    return emit_contraction(emit, factors, output)


def _added(product: Callable[[Emitter, Node, Node], Node]) -> Emit:
    """``beta * input + alpha * product``."""

    def emit_sum(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
        arguments: Any = node.args
        added, a, b = arguments
        alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
        if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
            return COMPUTED
        added = _times(emit, added, beta)
        if node.target is torch.addmm and is_constant(b) and is_constant(added) and _rank(added) == 1:
            return emit.function(F.linear, a, emit.function(torch.t, _times(emit, b, alpha)), added)
        scaled = _times(emit, product(emit, a, b), alpha)
        return scaled if beta == 0 else emit.function(torch.add, scaled, added)

    return emit_sum


def _times(emit: Emitter, x: Node, factor: Any) -> Node:
    return x if factor == 1 else emit.function(torch.mul, x, factor)


def _sum_of_batch(emit: Emitter, a: Node, b: Node) -> Node:
    return emit.function(torch.sum, emit.function(torch.matmul, a, b), (0,))


def _outer(emit: Emitter, a: Node, b: Node) -> Node:
    return emit.function(torch.mul, emit.function(torch.unsqueeze, a, 1), b)


def _matmul(emit: Emitter, a: Node, b: Node) -> Node:
    return emit.function(torch.matmul, a, b)


def _glu(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
    x, dim = node.args
    if not isinstance(dim, int):
        return COMPUTED
    halves = emit.function(torch.chunk, x, 2, dim)
    value, gate = (emit.function(operator.getitem, halves, i) for i in range(2))
    return emit.function(torch.mul, value, emit.function(torch.sigmoid, gate))


def _addcmul(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
    added, a, b = node.args
    product = emit.function(torch.mul, a, b)
    return emit.function(torch.add, added, _times(emit, product, node.kwargs.get("value", 1)))


def _lerp(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
    start, end, weight = node.args
    return emit.function(torch.add, start, emit.function(torch.mul, emit.function(torch.sub, end, start), weight))


_PRODUCTS = (torch.matmul,)

COMPOUNDS: dict[Any, Compound] = {
    torch.einsum: Compound(_einsum, _PRODUCTS),
    torch.mv: Compound(_product_of("ij", "j", "i"), _PRODUCTS),
    torch.dot: Compound(_product_of("i", "i", ""), _PRODUCTS),
    torch.vdot: Compound(_product_of("i", "i", ""), _PRODUCTS),
    torch.inner: Compound(_inner, _PRODUCTS),
    torch.tensordot: Compound(_tensordot, _PRODUCTS),
    torch.outer: Compound(_product_of("i", "j", "ij"), (torch.mul,)),
    torch.addmm: Compound(_added(_matmul), _PRODUCTS),
    torch.baddbmm: Compound(_added(_matmul), _PRODUCTS),
    torch.addbmm: Compound(_added(_sum_of_batch), _PRODUCTS),
    torch.addmv: Compound(_added(_matmul), _PRODUCTS),
    torch.addr: Compound(_added(_outer), (torch.mul,)),
    torch.addcmul: Compound(_addcmul, (torch.mul,)),
    torch.lerp: Compound(_lerp, (torch.mul,)),
    F.glu: Compound(_glu, (torch.sigmoid, torch.mul)),
}
"""Canonical function -> how it is taken apart."""
