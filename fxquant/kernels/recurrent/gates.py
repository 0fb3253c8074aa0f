"""The functions of gates, and what they make of products: in float32, operation by operation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fxquant.kernels.norm.rows import exp_parts, power_of_two

LOWEST_POWER = -126.0
"""Of two: smaller exponentials are this one."""
LSTM, GRU, TANH, RELU = range(4)
MODES = {"lstm": LSTM, "gru": GRU, "tanh": TANH, "relu": RELU}
GATES = (4, 3, 1, 1)
"""Rows of a product for each hidden value, by mode."""


def exp_below_zero(x: Tensor) -> Tensor:
    """Return ``e^x`` for float32 x <= 0, off by 2e-7 of it at most; below 2^-126 it is 2^-126."""
    y, power = exp_parts(x, LOWEST_POWER)
    return y * power_of_two(power)


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + e^-x)`` of float32 values; NaN stays."""
    e = exp_below_zero(-x.abs())
    above = 1.0 / (1.0 + e)
    return torch.where(x.isnan(), x, torch.where(x < 0, e * above, above))


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of float32 values; NaN stays."""
    magnitude = x.abs()
    e = exp_below_zero(-(magnitude + magnitude))
    y = (1.0 - e) / (1.0 + e)
    return torch.where(x.isnan(), x, torch.where(x < 0, -y, y))


def relu(x: Tensor) -> Tensor:
    """Return the larger of x and 0; NaN stays."""
    return torch.where(x < 0, 0.0, x)


Function = Callable[[Tensor], Tensor]


def advance(
    mode: int,
    of_input: Tensor,
    of_hidden: Tensor,
    hidden: Tensor,
    cell: Tensor,
    functions: tuple[Function, Function, Function] = (sigmoid, tanh, relu),
) -> tuple[Tensor, Tensor]:
    """Compute one step from its products: the next hidden state, not projected, and the next cell state.

    ``i, f, g, o`` of an LSTM and ``r, z, n`` of a GRU lie side by side in this order, as in torch::

        LSTM  c' = sigmoid(f) * c + sigmoid(i) * tanh(g),  h' = sigmoid(o) * tanh(c')
        GRU   n = tanh(x_n + sigmoid(r) * h_n),  h' = n + sigmoid(z) * (h - n)
        RNN   h' = tanh(x + h) or relu(x + h)

    Args:
        mode: One of ``MODES``.
        of_input: float32 [rows, gates * hidden], with its bias.
        of_hidden: The same of the hidden state.
        hidden: float32 [rows, hidden]; only a GRU reads it.
        cell: float32 [rows, hidden]; only an LSTM reads and changes it.
        functions: What stands for ``sigmoid``, ``tanh`` and ``relu``: those of torch have gradients.
    """
    sigmoid, tanh, relu = functions
    if mode == GRU:
        x_reset, x_update, x_new = of_input.chunk(3, -1)
        h_reset, h_update, h_new = of_hidden.chunk(3, -1)
        new = tanh(x_new + sigmoid(x_reset + h_reset) * h_new)
        return new + sigmoid(x_update + h_update) * (hidden - new), cell
    sums = of_input + of_hidden
    if mode == LSTM:
        take, keep, new, give = sums.chunk(4, -1)
        cell = sigmoid(keep) * cell + sigmoid(take) * tanh(new)
        return sigmoid(give) * tanh(cell), cell
    return tanh(sums) if mode == TANH else relu(sums), cell
