"""Sums of products of two tensors, named by labels of their dimensions, as the matrix product that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fxquant.graph.emit import Emitter
from fxquant.graph.query import value_of

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
        """Of the dimension of that name, on the example."""
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
    """The dimensions in the order of their labels."""
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
    """Whether the output has the dimensions that only ``a`` has behind those that only the other one has."""
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
    """The dimension that ``_joined`` made of those of ``source``, as these again, whatever their sizes are then."""
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
