"""The order of the steps of a recurrent layer, whatever computes a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

State = tuple[Tensor, Tensor]
"""Hidden and cell state, [rows, ...]; what is not an LSTM leaves the second alone."""

Step = Callable[[Tensor, Tensor, Tensor], State]
"""Products of the input, hidden and cell state of the rows that take part -> their next states."""


def run_steps(
    of_input: Tensor, hidden: Tensor, cell: Tensor, counts: list[int] | None, reverse: bool, step: Step
) -> tuple[Tensor, Tensor, Tensor]:
    """Run all steps of one direction of one layer.

    Args:
        of_input: Products of the input, [steps, rows, ...].
        hidden: [rows, outputs].
        cell: [rows, ...].
        counts: How many rows take part in each step, never more than in the step before; None: all. The others keep
            their state.
        reverse: The last step comes first.
        step: Computes one.

    Returns:
        The hidden states of all steps [steps, rows, outputs], 0 where a row took no part, and the last states.
    """
    rows = len(hidden)
    outputs: dict[int, Tensor] = {}
    order = range(len(of_input))
    for t in reversed(order) if reverse else order:
        count = rows if counts is None else counts[t]
        now, now_cell = step(of_input[t, :count], hidden[:count], cell[:count])
        if count < rows:
            outputs[t] = F.pad(now, (0, 0, 0, rows - count))
            now, now_cell = torch.cat([now, hidden[count:]]), torch.cat([now_cell, cell[count:]])
        else:
            outputs[t] = now
        hidden, cell = now, now_cell
    return torch.stack([outputs[t] for t in order]), hidden, cell
