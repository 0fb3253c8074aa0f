"""Writes operators that hide others as those: an einsum, a product with a sum, a gated linear unit."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.edit import Emitter
from fxquant.graph.query import value_of

IsConstant = Callable[[Node], bool]
Emit = Callable[[Emitter, Node, IsConstant], Node | str]

MANY = "a product of three or more tensors has no integer operator; written as products of two it has"
SPELLING = "of einsum only an equation with tensors behind it is understood: torch.einsum('ij,jk->ik', a, b)"
COMPUTED = "an argument beside its tensors is computed at run time, so it is not taken apart"


@dataclass(frozen=True, slots=True)
class Composite:
    """The rule that takes one operator apart."""

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
    if not arrow:  # then it is all that stands once, in the order of the alphabet, after what "..." stands for
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
    """Return the operator that an equation stands for."""

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


def _joined_along(dim: int, dims_before: tuple[int, ...]) -> Emit:
    """A concatenation that gives what has fewer dimensions others first, each before the dimension that is named."""

    def emit_join(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
        items: Any = node.args[0] if node.args else node.kwargs.get("tensors")
        if not isinstance(items, (list, tuple)) or set(node.kwargs) - {"tensors"} or not all(map(_is_tensor, items)):
            return COMPUTED
        raised = []
        for item in items:
            for before in dims_before[_rank(item) :]:
                item = emit.function(torch.unsqueeze, item, before)
            raised.append(item)
        return emit.function(torch.cat, raised, min(dim, _rank(raised[0]) - 1))

    return emit_join


_PRODUCTS = (torch.matmul,)

COMPOSITES: dict[Any, Composite] = {
    torch.einsum: Composite(_einsum, _PRODUCTS),
    torch.mv: Composite(_product_of("ij", "j", "i"), _PRODUCTS),
    torch.dot: Composite(_product_of("i", "i", ""), _PRODUCTS),
    torch.vdot: Composite(_product_of("i", "i", ""), _PRODUCTS),
    torch.inner: Composite(_inner, _PRODUCTS),
    torch.tensordot: Composite(_tensordot, _PRODUCTS),
    torch.outer: Composite(_product_of("i", "j", "ij"), (torch.mul,)),
    torch.addmm: Composite(_added(_matmul), _PRODUCTS),
    torch.baddbmm: Composite(_added(_matmul), _PRODUCTS),
    torch.addbmm: Composite(_added(_sum_of_batch), _PRODUCTS),
    torch.addmv: Composite(_added(_matmul), _PRODUCTS),
    torch.addr: Composite(_added(_outer), (torch.mul,)),
    torch.addcmul: Composite(_addcmul, (torch.mul,)),
    torch.lerp: Composite(_lerp, (torch.mul,)),
    F.glu: Composite(_glu, (torch.sigmoid, torch.mul)),
    torch.hstack: Composite(_joined_along(1, (0,)), (torch.cat,)),
    torch.vstack: Composite(_joined_along(0, (0, 0)), (torch.cat,)),
    torch.row_stack: Composite(_joined_along(0, (0, 0)), (torch.cat,)),
    torch.dstack: Composite(_joined_along(2, (0, 0, 2)), (torch.cat,)),
    torch.column_stack: Composite(_joined_along(1, (0, 1)), (torch.cat,)),
}
"""Canonical function -> how it is taken apart."""

Labels = tuple[str, ...]
"""One for each dimension. Of an einsum: letters, and, for what ``...`` stands for, numbers counted from the right."""

DIAGONAL = "an index that stands twice in one operand takes a diagonal; torch.diagonal takes it in integers"
BROADCAST = "it sums over a dimension of size 1 along a longer one, which no matrix product does; expand it before"


@dataclass(frozen=True, slots=True)
class Operand:
    """A factor, and the names of its dimensions."""

    node: Node
    labels: Labels
    constant: bool = False
    """Whether it is the same in every call. What comes of it alone is then computed once."""

    def size(self, label: str) -> int:
        """Return the size of the dimension of that name, on the example."""
        info = value_of(self.node)
        assert info is not None, f"{self.node.name} is no tensor"
        return info.shape[self.labels.index(label)]


def emit_contraction(emit: Emitter, operands: Sequence[Operand], output: Labels) -> Node | str:
    """Write the sum of the products of one or two tensors over all labels that are not in ``output``.

    What only one operand has is summed there first. Labels that both have and the output too are the batch of a matrix
    product; those that the output lacks are what it sums over. A product that sums over nothing is one of elements.

    Returns:
        The node of the result, or why it is no such product.
    """
    if any(len(set(operand.labels)) < len(operand.labels) for operand in operands):
        return DIAGONAL
    if len(operands) == 1:
        return _arranged(emit, _summed(emit, operands[0], output), output)
    first, second = operands
    shared = [label for label in first.labels if label in second.labels]
    if any(first.size(label) != second.size(label) for label in shared if label not in output):
        return BROADCAST
    wanted = {*shared, *output}
    product = _product(emit, _summed(emit, first, wanted), _summed(emit, second, wanted), output)
    return _arranged(emit, product, output)


def _summed(emit: Emitter, operand: Operand, wanted: Any) -> Operand:
    """Sum over the dimensions that nothing else has."""
    left = tuple(label for label in operand.labels if label in wanted)
    if left == operand.labels:
        return operand
    dims = tuple(i for i, label in enumerate(operand.labels) if label not in wanted)
    return Operand(emit.function(torch.sum, operand.node, dims), left, operand.constant)


def _arranged(emit: Emitter, operand: Operand, order: Labels) -> Node:
    """Return the dimensions in the order of their labels."""
    if operand.labels == order:
        return operand.node
    return emit.function(torch.permute, operand.node, tuple(operand.labels.index(label) for label in order))


def _product(emit: Emitter, a: Operand, b: Operand, output: Labels) -> Operand:
    shared = [label for label in output if label in a.labels and label in b.labels]
    summed = tuple(label for label in a.labels if label in b.labels and label not in shared)
    if not summed:
        return _elements(emit, a, b, output)
    if a.constant or (not b.constant and _comes_last(a, shared, output)):
        a, b = b, a  # a weight is the second factor, and rows come before columns: nothing to turn afterwards
    batch = tuple(shared)
    rows, columns = (tuple(x for x in operand.labels if x not in (*batch, *summed)) for operand in (a, b))
    left = _joined(emit, _arranged(emit, a, (*batch, *rows, *summed)), -len(summed), len(summed))
    right = _joined(emit, _arranged(emit, b, (*batch, *summed, *columns)), len(batch), len(summed))
    # Without a batch any number of rows does, and a vector has no columns; a weight is a matrix all the same.
    one_row, one_column = bool(batch), bool(batch) or b.constant or len(columns) > 1
    if one_row:
        left = _joined(emit, left, len(batch), len(rows))
    if one_column:
        right = _joined(emit, right, len(batch) + 1, len(columns))
    y = emit.function(torch.matmul, left, right)
    if one_column:
        y = _parted(emit, y, -1, b, columns)
    if one_row:
        y = _parted(emit, y, len(batch), a, rows)
    return Operand(y, (*batch, *rows, *columns))


def _comes_last(a: Operand, shared: list[str], output: Labels) -> bool:
    """Tell whether the dimensions of ``a`` alone come last in the output, after those of the other factor alone."""
    own = [label for label in output if label not in shared]
    return bool(own) and own[0] not in a.labels and own[-1] in a.labels


def _joined(emit: Emitter, x: Node, first: int, count: int) -> Node:
    """``count`` neighbouring dimensions as one; none as one of size 1."""
    if count == 1:
        return x
    return (
        emit.function(torch.flatten, x, first, first + count - 1) if count else emit.function(torch.unsqueeze, x, first)
    )


def _parted(emit: Emitter, x: Node, dim: int, source: Operand, labels: Labels) -> Node:
    """Take apart the dimension that ``_joined`` made of those of ``source``, whatever their sizes are then."""
    if len(labels) == 1:
        return x
    if not labels:
        return emit.function(torch.squeeze, x, dim)
    sizes = tuple(_size(emit, source, label) for label in labels)
    value = value_of(x)
    assert value is not None  # the emitter inferred it
    at = dim % len(value.shape)
    shape = (*value.shape[:at], *map(source.size, labels), *value.shape[at + 1 :])
    known = type(value)(shape, value.dtype, value.device, value.contiguous)
    return emit.function(torch.unflatten, x, dim, sizes, value=known)


def _size(emit: Emitter, source: Operand, label: str) -> Any:
    if source.constant:
        return source.size(label)
    return emit.method("size", source.node, source.labels.index(label), value=int)


def _elements(emit: Emitter, a: Operand, b: Operand, output: Labels) -> Operand:
    """Sums over nothing: every element of one times those of the other, along the dimensions that it lacks."""
    factors = []
    for operand in (a, b):
        node = _arranged(emit, operand, tuple(label for label in output if label in operand.labels))
        for i, label in enumerate(output):
            if label not in operand.labels:
                node = emit.function(torch.unsqueeze, node, i)
        factors.append(node)
    return Operand(emit.function(torch.mul, *factors), output)
