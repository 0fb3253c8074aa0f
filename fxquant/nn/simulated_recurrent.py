"""Recurrent layers in float, step by step: their matrices rounded, and what is multiplied by them rounded as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.fake_quantize.base import FakeQuantizeBase
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.graph.recurrent import RecurrentShape, split_rows, split_weight, stacked, stacked_bias
from fxquant.graph.state_values import check_entries
from fxquant.kernels.recurrent.gates import MODES, advance
from fxquant.kernels.recurrent.sequence import State, run_steps
from fxquant.nn.recurrent import is_backward, run_recurrent

INNER_ROUNDING = "activation_fake_quant"
"""Name of the module that rounds inputs and hidden states of a recurrent layer."""


def simulate(layer: Any, weight: Tensor, rounding: Callable[[Tensor], Tensor], input: Any, hx: Any) -> Any:
    """Run a recurrent layer with other matrices, and with values rounded before they are multiplied.

    Args:
        layer: Has the hyperparameters and the biases.
        weight: The matrices, as ``graph.recurrent.stacked`` gives them.
        rounding: Rounds the input of each layer, and the hidden states of each step.
        input: As the layer of torch takes it.
        hx: The same of the first states; None: zeros.
    """
    shape = RecurrentShape.of(layer)
    return run_in_float(shape, weight, stacked_bias(layer), rounding, input, hx, type(layer).__name__, layer.training)


def run_in_float(
    shape: RecurrentShape,
    weight: Tensor,
    bias: Tensor | None,
    rounding: Callable[[Tensor], Tensor],
    input: Any,
    hx: Any,
    at: str,
    training: bool = False,
) -> Any:
    """Do the same for a layer that is described by its shape.

    Args:
        shape: Of the layer.
        weight, rounding, input, hx: As above.
        bias: [rows of the weight], or None.
        at: Name of the layer, for messages.
        training: Whether values are dropped between layers.
    """
    weights, mode = split_weight(weight, shape), MODES[shape.mode]
    biases = None if bias is None else split_rows(bias, shape)

    def run(
        index: int, x: Tensor, hidden: Tensor, cell: Tensor, counts: list[int] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_x, of_h, *onto = weights[index]
        bias_x, bias_h = (None, None) if biases is None else biases[index][:2]

        def step(of_input: Tensor, hidden: Tensor, cell: Tensor) -> State:
            of_hidden = F.linear(rounding(hidden), of_h, bias_h)
            now, cell = advance(mode, of_input, of_hidden, hidden, cell, (torch.sigmoid, torch.tanh, torch.relu))
            return F.linear(rounding(now), onto[0]) if onto else now, cell

        return run_steps(F.linear(rounding(x), of_x, bias_x), hidden, cell, counts, is_backward(shape, index), step)

    return run_recurrent(shape, input, hx, run, at, training)


def values_inside(layer: Any, input: Any, hx: Any = None) -> Tensor:
    """Return all that a float recurrent layer multiplies, inputs and hidden states one after the other: float32 [n]."""
    seen: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        seen.append(x.detach().float().flatten())
        return x

    shape = RecurrentShape.of(layer)
    run_in_float(shape, stacked(layer), stacked_bias(layer), keep, input, hx, type(layer).__name__)
    return torch.cat(seen)


def as_it_is(x: Tensor) -> Tensor:
    """Round nothing."""
    return x


class FakeQuantizedMatrices(nn.Module):
    """Fake-quantizes the matrices of a recurrent layer, and its inputs and hidden states by ``activation_fake_quant``.

    The matrices stay the parameters that they are in torch; ``weight`` is made of them.
    """

    torch_class: type[nn.Module]
    weight_fake_quant: nn.Module
    activation_fake_quant: nn.Module

    weight: Tensor = cast(Any, property(stacked))
    """The matrices one below the other; gradients reach them."""

    def forward(self, input: Any, hx: Any = None, *_: Any, **__: Any) -> Any:
        rounding: Callable[[Tensor], Tensor] = self.activation_fake_quant
        if isinstance(rounding, FakeQuantizeBase) and rounding.is_on("observer_enabled"):
            rounding = self._measured(rounding, input, hx)
        return simulate(self, self.weight_fake_quant(self.weight), rounding, input, hx)

    def _measured(self, fake_quant: Any, input: Any, hx: Any) -> Callable[[Tensor], Tensor]:
        """Show all values of a call to a fake quantization at once, and return how it rounds them then."""
        with torch.no_grad():
            fake_quant(values_inside(self, input, hx))
        if not fake_quant.rounds():
            return as_it_is
        scale, zero_point, scheme = fake_quant.scale.detach().clone(), fake_quant.zero_point.clone(), fake_quant.scheme
        return lambda x: fake_quantize(x, scale, zero_point, scheme)

    def weights_only(self, input: Any, hx: Any = None) -> Any:
        """Run with rounded matrices, and values as they are."""
        return simulate(self, self.weight_fake_quant(self.weight), as_it_is, input, hx)

    def unrounded(self, input: Any, hx: Any = None) -> Any:
        """Return what the float layer gives."""
        return self.torch_class.forward(self, input, hx)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        check_entries(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class DequantizedMatrices(nn.Module):
    """Holds the matrices of a recurrent layer as integers, and rounds values as the simulation does."""

    activation_fake_quant: nn.Module
    effective_weight: Callable[[Any], Tensor]

    def forward(self, input: Any, hx: Any = None) -> Any:
        return simulate(self, self.effective_weight(input), self.activation_fake_quant, input, hx)
