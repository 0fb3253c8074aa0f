"""Describes recurrent layers of torch: their matrices, which lie in one weight here, and the shapes of their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Mode = Literal["lstm", "gru", "tanh", "relu"]

CELLS: dict[type[nn.Module], Mode | None] = {nn.LSTMCell: "lstm", nn.GRUCell: "gru", nn.RNNCell: None}
"""Class of one step -> how it computes; None: as its ``nonlinearity`` says."""
LAYERS: dict[type[nn.Module], Mode | None] = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: None}
"""The same of classes of whole sequences."""
RECURRENT = (*LAYERS, *CELLS)
GATES: dict[Mode, int] = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Says which parameter of a layer is a matrix, and which is added to its products."""

    name: str
    rows: int
    columns: int
    bias: str
    """Empty: nothing is added."""


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """Holds what a recurrent layer is, beside its parameters."""

    mode: Mode
    input_size: int
    hidden_size: int
    proj_size: int
    """Features of a projected hidden state; 0: it is not projected."""
    num_layers: int
    bidirectional: bool
    bias: bool
    batch_first: bool
    dropout: float
    """Between layers, while training."""
    is_cell: bool
    """True: it computes one step."""

    @classmethod
    def of(cls, layer: Any) -> RecurrentShape:
        """Describe a layer of torch, or of a class derived from one."""
        kind = next(kind for kind in RECURRENT if isinstance(layer, kind))
        mode = LAYERS[kind] if kind in LAYERS else CELLS[kind]
        if mode is None:
            mode = "tanh" if layer.nonlinearity == "tanh" else "relu"
        bias, sizes = bool(layer.bias), (layer.input_size, layer.hidden_size)
        if kind in CELLS:
            return cls(mode, *sizes, 0, 1, False, bias, False, 0.0, True)
        layers = (layer.proj_size, layer.num_layers, layer.bidirectional)
        return cls(mode, *sizes, *layers, bias, layer.batch_first, float(layer.dropout), False)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        """Return the features of a hidden state."""
        return self.proj_size or self.hidden_size

    @property
    def has_cell_state(self) -> bool:
        return self.mode == "lstm"

    @property
    def products(self) -> int:
        """Return the rows of the matrices that inputs and hidden states are multiplied by."""
        return GATES[self.mode] * self.hidden_size

    def matrices(self) -> tuple[tuple[Matrix, ...], ...]:
        """Return the matrices of each direction of each layer: of the input, of the hidden state, of the projection."""
        return tuple(tuple(self._of_direction(i)) for i in range(self.num_layers * self.directions))

    def _of_direction(self, index: int) -> Iterator[Matrix]:
        layer, reverse = divmod(index, self.directions)
        end = "" if self.is_cell else f"_l{layer}{'_reverse' if reverse else ''}"
        inputs = self.output_size * self.directions if layer else self.input_size
        for name, columns in (("ih", inputs), ("hh", self.output_size)):
            yield Matrix(f"weight_{name}{end}", self.products, columns, f"bias_{name}{end}" if self.bias else "")
        if self.proj_size:
            yield Matrix(f"weight_hr{end}", self.proj_size, self.hidden_size, "")

    def all_matrices(self) -> tuple[Matrix, ...]:
        """Return the matrices of all directions of all layers, as they lie in the weight."""
        return tuple(matrix for one in self.matrices() for matrix in one)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Return the rows of all matrices together, and the columns of the widest."""
        each = self.all_matrices()
        return sum(matrix.rows for matrix in each), max(matrix.columns for matrix in each)


def is_recurrent(layer: object) -> bool:
    """Tell whether a module is a recurrent layer of torch, of a whole sequence or of one step."""
    return isinstance(layer, RECURRENT)


def weight_of(layer: Any) -> Tensor:
    """Return the weight of a layer as one tensor, whose dimension 0 counts the output channels of most layers.

    Of a recurrent layer, the matrices lie one below the other, [rows of all, columns of the widest]; narrower ones end
    in zeros.
    """
    return stacked(layer) if is_recurrent(layer) and "weight" not in layer._buffers else layer.weight


def stacked(layer: Any) -> Tensor:
    """Return the matrices of a recurrent layer one below the other; gradients reach them."""
    shape = RecurrentShape.of(layer)
    columns = shape.weight_shape[1]
    return torch.cat([F.pad(getattr(layer, m.name), (0, columns - m.columns)) for m in shape.all_matrices()])


def split_rows(values: Tensor, shape: RecurrentShape) -> list[tuple[Tensor, ...]]:
    """Split what has a row for each of the weight's into the rows of each matrix, by direction.

    Args:
        values: [rows of all, ...].
        shape: Of the layer.
    """
    parts = iter(values.split([matrix.rows for matrix in shape.all_matrices()]))
    return [tuple(next(parts) for _ in one) for one in shape.matrices()]


def split_weight(weight: Tensor, shape: RecurrentShape) -> list[tuple[Tensor, ...]]:
    """Take the matrices of each direction out of the weight: the inverse of ``stacked``."""
    rows = split_rows(weight, shape)
    return [
        tuple(part[:, : matrix.columns] for part, matrix in zip(parts, one, strict=True))
        for parts, one in zip(rows, shape.matrices(), strict=True)
    ]


def stacked_bias(layer: Any) -> Tensor | None:
    """Return what is added to the products of each row of the weight, [rows]; None for a layer without biases."""
    shape = RecurrentShape.of(layer)
    if not shape.bias:
        return None
    some = getattr(layer, shape.all_matrices()[0].bias)
    return torch.cat([getattr(layer, m.bias) if m.bias else some.new_zeros(m.rows) for m in shape.all_matrices()])


def with_matrices(layer: Any, weight: Tensor) -> None:
    """Give a copy of a recurrent layer other matrices, as parameters of its own.

    Args:
        layer: Its parameters are replaced, and not written into.
        weight: As ``stacked`` gives it.
    """
    shape = RecurrentShape.of(layer)
    parts = (part for one in split_weight(weight, shape) for part in one)
    new = {m.name: nn.Parameter(part.clone()) for m, part in zip(shape.all_matrices(), parts, strict=True)}
    layer._parameters = {**layer._parameters, **new}
    if (renew := getattr(layer, "_init_flat_weights", None)) is not None:
        renew()


def without_matrices(layer: Any) -> None:
    """Take the matrices out of a copy of a recurrent layer; biases stay."""
    names = {matrix.name for matrix in RecurrentShape.of(layer).all_matrices()}
    layer._parameters = {name: value for name, value in layer._parameters.items() if name not in names}
    if (renew := getattr(layer, "_init_flat_weights", None)) is not None:
        renew()
