"""The order in which a recurrent layer computes: layers, directions, packed sequences; whatever computes a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from fxquant.errors import InputError
from fxquant.graph.inputs import describe_value
from fxquant.graph.recurrent import RecurrentShape

Direction = Callable[[int, Tensor, Tensor, Tensor, list[int] | None], tuple[Tensor, Tensor, Tensor]]
"""Index of a direction, its input [steps, rows, features], hidden and cell state [rows, ...], and how many rows take
part in each step -> the hidden states of all steps, and the last states. Odd ones go backwards in layers that have two
directions."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """The input of a layer, and the way back to the form that it came in."""

    x: Tensor
    """[steps, rows, features], 0 after the end of a packed sequence."""
    counts: list[int] | None
    """How many rows take part in each step, of a packed sequence."""
    packed: PackedSequence | None = None
    present: Tensor | None = None
    """Which steps of which rows a packed sequence holds, bool [steps, rows]."""
    single: bool = False
    """The input had no batch."""

    @classmethod
    def of(cls, shape: RecurrentShape, input: Tensor | PackedSequence, at: str) -> Sequence:
        """Read the input of a layer.

        Raises:
            InputError: it has no steps, or another shape than the layer takes; the message names the layer.
        """
        if isinstance(input, PackedSequence):
            return cls._of_packed(shape, input, at)
        dims = (1, 2) if shape.is_cell else (2, 3)
        if not isinstance(input, Tensor) or input.dim() not in dims or input.shape[-1] != shape.input_size:
            rows = ("[{}]", "[rows, {}]") if shape.is_cell else ("[steps, {}]", _sizes(shape))
            raise InputError(
                "the input of a recurrent layer has the wrong shape",
                at=at,
                got=list(input.shape) if isinstance(input, Tensor) else type(input).__name__,
                expected=" or ".join(rows).format(*[shape.input_size] * 2),
            )
        single = input.dim() == dims[0]
        if shape.is_cell:
            return cls((input.unsqueeze(0) if single else input).unsqueeze(0), None, single=single)
        x = input.unsqueeze(1) if single else input.transpose(0, 1) if shape.batch_first else input
        if not x.shape[0]:
            raise InputError(
                "a recurrent layer got a sequence without steps",
                at=at,
                got=list(input.shape),
                expected="at least one step",
            )
        return cls(x, None, single=single)

    @classmethod
    def _of_packed(cls, shape: RecurrentShape, packed: PackedSequence, at: str) -> Sequence:
        if shape.is_cell or packed.data.dim() != 2 or packed.data.shape[1] != shape.input_size:
            raise InputError(
                "the packed sequence does not fit a recurrent layer",
                at=at,
                got=list(packed.data.shape),
                expected="a tensor, for one step" if shape.is_cell else f"[values, {shape.input_size}]",
            )
        counts = packed.batch_sizes.tolist()
        device = packed.data.device
        present = torch.arange(counts[0], device=device) < packed.batch_sizes.to(device).unsqueeze(1)
        x = packed.data.new_zeros((*present.shape, shape.input_size))
        x[present] = packed.data
        return cls(x, counts, packed, present)

    def states(self, shape: RecurrentShape, given: Any, at: str) -> tuple[Tensor, Tensor]:
        """Return the first hidden and cell states, [directions of all layers, rows, features].

        Raises:
            InputError: they are given in another shape; the message names the layer.
        """
        count, rows = shape.num_layers * shape.directions, self.x.shape[1]
        sizes = ((count, rows, shape.output_size), (count, rows, shape.hidden_size if shape.has_cell_state else 0))
        if given is None:
            return self.x.new_zeros(sizes[0]), self.x.new_zeros(sizes[1])
        if shape.has_cell_state and not (isinstance(given, (tuple, list)) and len(given) == 2):
            raise InputError(
                "the first states of an LSTM are two", at=at, got=describe_value(given), expected="(hidden, cell)"
            )
        hidden, cell = given if shape.has_cell_state else (given, None)
        found = [self._state(shape, hidden, sizes[0], "hidden", at)]
        no_cell = self.x.new_zeros(sizes[1])
        found.append(no_cell if not shape.has_cell_state else self._state(shape, cell, sizes[1], "cell", at))
        return found[0], found[1]

    def _state(self, shape: RecurrentShape, given: Any, sizes: tuple[int, ...], name: str, at: str) -> Tensor:
        wanted = [
            size for i, size in enumerate(sizes) if not (i == 0 and shape.is_cell) and not (i == 1 and self.single)
        ]
        if not isinstance(given, Tensor) or list(given.shape) != wanted:
            raise InputError(
                f"the first {name} state of a recurrent layer has the wrong shape",
                at=at,
                got=list(given.shape) if isinstance(given, Tensor) else type(given).__name__,
                expected=wanted,
            )
        state = given.unsqueeze(0) if shape.is_cell and not self.single else given
        state = state.reshape(sizes)
        order = None if self.packed is None else self.packed.sorted_indices
        return state if order is None else state.index_select(1, order)

    def back(self, shape: RecurrentShape, outputs: Tensor, hidden: Tensor, cell: Tensor) -> Any:
        """Give results the form that torch gives them: of a cell the states, else the outputs and the states."""
        order = None if self.packed is None else self.packed.unsorted_indices
        if order is not None:
            hidden, cell = hidden.index_select(1, order), cell.index_select(1, order)
        if self.single:
            hidden, cell = hidden.squeeze(1), cell.squeeze(1)
        if shape.is_cell:
            return (hidden.squeeze(0), cell.squeeze(0)) if shape.has_cell_state else hidden.squeeze(0)
        states = (hidden, cell) if shape.has_cell_state else hidden
        if self.packed is not None:
            packed = self.packed
            data = outputs[self.present]
            return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices), states
        if self.single:
            return outputs.squeeze(1), states
        return outputs.transpose(0, 1) if shape.batch_first else outputs, states


def _sizes(shape: RecurrentShape) -> str:
    return "[rows, steps, {}]" if shape.batch_first else "[steps, rows, {}]"


def run_recurrent(
    shape: RecurrentShape, input: Tensor | PackedSequence, given: Any, run: Direction, at: str, training: bool = False
) -> Any:
    """Run a recurrent layer, and return what torch returns.

    Args:
        shape: Of the layer.
        input: As the layer of torch takes it.
        given: Its first states, or None.
        run: Computes all steps of one direction of one layer.
        at: Name of the layer, for messages.
        training: Whether values are dropped between layers.

    Raises:
        InputError: input or states have another shape.
    """
    sequence = Sequence.of(shape, input, at)
    hidden, cell = sequence.states(shape, given, at)
    x, last_hidden, last_cell = sequence.x, [], []
    for layer in range(shape.num_layers):
        outputs = []
        for index in range(layer * shape.directions, (layer + 1) * shape.directions):
            y, h, c = run(index, x, hidden[index], cell[index], sequence.counts)
            outputs.append(y)
            last_hidden.append(h)
            last_cell.append(c)
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if training and shape.dropout and layer < shape.num_layers - 1:
            x = F.dropout(x, shape.dropout, training=True)
    return sequence.back(shape, x, torch.stack(last_hidden), torch.stack(last_cell))


def is_backward(shape: RecurrentShape, index: int) -> bool:
    """Tell whether a direction goes from the last step to the first."""
    return shape.bidirectional and index % 2 == 1
