"""A layer of a simulation whose outputs can get another mean and another variance, by its bias and its scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.fake_quantize.adaround import KnownIntegers, OwnIntegersFakeQuantize, set_learned_bias
from fxquant.fake_quantize.qparams import to_integers
from fxquant.graph.query import called_module, nodes_by_name
from fxquant.measure.runner import run_nodes
from fxquant.nn.fake_quantize import FLOAT_BIAS
from fxquant.nn.weight_forms import with_fake_quantized_weight, without_fake_quantized_weight
from fxquant.passes.structural_zeros import structural_zeros
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import QParams, QScheme
from fxquant.training.channel_statistics import Correction
from fxquant.training.weighted_units import Left, refused_kind, split_by_refusal


@dataclass(frozen=True, slots=True)
class CorrectableLayer:
    """The layer with the weight of a unit, in a simulation."""

    unit: QuantUnit
    members: tuple[Node, ...]
    """Nodes of the unit as far as the layer, which is the last."""
    qparams: QParams
    """Of the weight."""
    has_zeros: bool
    """Whether some of its outputs are zero whatever the input is."""

    @property
    def module(self) -> Any:
        """Return the layer itself."""
        return called_module(self.members[-1])

    @property
    def channel_axis(self) -> int:
        """Return the dimension of its outputs that counts the channels; negative."""
        return int(1 - self.module.weight.dim()) if self.module.weight.dim() > 2 else -1

    @property
    def can_be_scaled(self) -> bool:
        """Tell whether each output channel has scales of its own."""
        axis, layer = self.qparams.scheme.axis, self.module
        if self.qparams.scheme.power_of_two:
            return False
        own = axis is not None and axis % layer.weight.dim() == layer.output_axis
        return own and self.qparams.scale.shape[0] == getattr(layer, "out_channels", self.qparams.scale.shape[0])

    @property
    def can_be_shifted(self) -> bool:
        """Tell whether it has a bias, or gives no zeros that have to stay: those of rows of zeros, or of padding."""
        layer, before = self.module, self.module._buffers.get(FLOAT_BIAS)
        bias = layer.bias if before is None else before
        return (bias is not None and bool(bias.any())) or (layer.weight.dim() > 2 and not self.has_zeros)

    def unrounded(self, values: Mapping[Node, Any]) -> Tensor:
        """Return what the float layer gives for values of the float model."""
        found: Tensor = run_nodes(self.members, values, {self.members[-1]: self.module.unrounded})
        return found

    def rounded(self, values: Mapping[Node, Any]) -> Tensor:
        """Return what the layer gives for values of the quantized model."""
        found: Tensor = run_nodes(self.members, values)
        return found

    def correct(self, correction: Correction) -> nn.Module:
        """Correct the layer in the simulation, and return the one for ``weight_layers``.

        The integers are those of rounding to nearest: it is their scales that are multiplied.
        """
        module, qparams = self.module, self.qparams
        integers = to_integers(module.weight.detach(), qparams.scale, qparams.zero_point, qparams.scheme).contiguous()
        if self.can_be_scaled:
            factor = correction.factor.reshape(-1, *[1] * (qparams.scale.dim() - 1)).to(qparams.scale.device)
            scale = (qparams.scale.double() * factor).float().clamp(min=torch.finfo(torch.float32).smallest_normal)
            qparams = replace(qparams, scale=scale)
        known = KnownIntegers(integers, qparams)
        layer = with_fake_quantized_weight(without_fake_quantized_weight(module), known, module.output_axis)
        module.weight_fake_quant = OwnIntegersFakeQuantize(known)
        if self.can_be_shifted:
            factor, shift = (each.to(module.weight.device) for each in (correction.factor, correction.shift))
            old = torch.zeros_like(shift) if module.bias is None else module.bias.detach().double()
            bias = (old * factor + shift).to(module.weight.dtype)
            set_learned_bias(layer, bias)
            if FLOAT_BIAS not in module._buffers:
                before = torch.zeros_like(bias) if module.bias is None else module.bias.detach().clone()
                module.register_buffer(FLOAT_BIAS, before, persistent=False)
            module.bias = nn.Parameter(bias, requires_grad=False)
        return layer


def correctable_layers(
    simulated: GraphModule, plan: QuantPlan, own: Mapping[str, Any]
) -> tuple[list[CorrectableLayer], list[Left]]:
    """Return the layers whose outputs can be corrected, and the units with other weights, with the reason.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave.
        plan: Its plan, with qparams.
        own: Layers whose integers are known already, under the roots of their units.
    """
    taken, left = split_by_refusal(simulated, plan, own, _refusal)
    nodes, zeros = nodes_by_name(simulated), structural_zeros(simulated)
    layers = []
    for unit, node in taken:
        members = tuple(nodes[name] for name in unit.nodes)
        ahead = members[: members.index(node) + 1]
        layers.append(CorrectableLayer(unit, ahead, plan.qparams[unit.roles["weight"]], node in zeros))
    return layers, left


def _refusal(layer: Any, scheme: QScheme, own: Any) -> str:
    """Why the outputs of a layer are not corrected; empty if they can be."""
    if own is not None:
        return f"{type(own.weight_fake_quant).__name__} has integers of its own, which make up for their errors"
    return refused_kind(layer)
