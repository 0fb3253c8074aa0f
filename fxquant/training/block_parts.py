"""What of a block is learned: the rounding and the bias of each layer, and the scales that values are rounded by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.fx import Node

from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize, OwnIntegersFakeQuantize
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.query import module_of
from fxquant.kernels import (
    fake_quantize_learnable_per_tensor_affine_backward,
    fake_quantize_per_tensor_affine,
)
from fxquant.nn.fake_quantize import FLOAT_BIAS, FakeQuantizedWeight, WithWeight
from fxquant.plan.spec import QParams, TensorRef

SMALLEST_STEP, LARGEST_STEP = 0.3, 3.0
"""How far a scale may go from where it began, as a factor."""


class LearnedLayer:
    """A layer whose rounding and bias are learned: it is called in the place of the layer.

    Args:
        root: Root of its unit.
        module: The layer in the simulation.
        rounding: Its ``V`` is learned.
    """

    def __init__(self, root: str, module: FakeQuantizedWeight, rounding: AdaRoundFakeQuantize) -> None:
        self.root, self.module, self.rounding = root, module, rounding
        self.weight = module.weight.detach()
        before = module._buffers.get(FLOAT_BIAS)
        bias: Any = module.bias if before is None else before  # what rounding adds on average is not taken out twice
        self.bias: Tensor | None = None if bias is None else bias.detach().clone()
        no_bias = bias is None or (self.weight.dim() == 2 and not bool(bias.any()))  # rows of zeros give zeros still
        wide = None if no_bias else torch.promote_types(bias.dtype, torch.float32)  # Adam divides by 0 in float16
        self.shift = None if no_bias else torch.zeros_like(bias.detach(), dtype=wide).requires_grad_()
        """What is added to the bias, in units of ``spread``, float32 or more; None: nothing is."""
        self.spread = 1.0
        """Standard deviation of what the layer gives."""

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._call(x, self.rounding(self.weight), self.learned_bias(), *args, **kwargs)

    def measured(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Call the float layer, and set ``spread``."""
        y = self._call(x, self.weight, self.bias, *args, **kwargs)
        deviation = float(y.detach().float().std()) if y.numel() > 1 else 1.0
        self.spread = deviation if math.isfinite(deviation) and deviation > 0 else 1.0
        return y

    def rounded(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Call the layer with the weight as ``V`` says now, and the bias of the float layer."""
        return self._call(x, self.rounding(self.weight), self.bias, *args, **kwargs)

    def learned_bias(self) -> Tensor | None:
        """Return the bias with what was learned; differentiable."""
        if self.bias is None or self.shift is None:
            return self.bias
        return (self.bias + self.shift * self.spread).to(self.bias.dtype)

    def finish(self, v: Tensor, bias: Tensor | None) -> None:
        """Let the layer of the simulation give what was learned."""
        self.rounding.V.data.copy_(v)
        self.rounding.set_soft_rounding(False)
        module: Any = self.module
        module.weight_fake_quant = OwnIntegersFakeQuantize(self.rounding)
        if bias is None:
            return
        self.bias, self.shift = bias.to(self.weight.device), None
        if FLOAT_BIAS not in module._buffers:  # what the float model adds, in which it runs still
            module.register_buffer(FLOAT_BIAS, module.bias.detach().clone(), persistent=False)
        module.bias = nn.Parameter(self.bias.clone(), requires_grad=False)

    def _call(self, x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
        return self.module.torch_class.forward(WithWeight(self.module, weight, bias), x, *args, **kwargs)


class LearnedScale:
    """One scale that values are rounded by, at one node or several.

    Args:
        owner: The tensor that owns the qparams.
        qparams: Of the owner.
        modules: Node -> the module that rounds there, and what its scale is, as a multiple of the owner's.
    """

    def __init__(
        self, owner: TensorRef, qparams: QParams, modules: Mapping[Node, tuple[StaticFakeQuantize, float]]
    ) -> None:
        self.owner, self._modules = owner, dict(modules)
        self._qparams = qparams
        self.factor = torch.zeros(1, dtype=torch.float32, device=qparams.scale.device).requires_grad_()
        """Logarithm of what the scale is multiplied with."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes that round by it."""
        return tuple(self._modules)

    def scale_at(self, node: Node) -> Tensor:
        """Return the scale at a node; differentiable."""
        return self._modules[node][0].scale * self.factor.exp()

    def hold(self) -> None:
        """Keep the scale near where it began."""
        self.factor.data.clamp_(math.log(SMALLEST_STEP), math.log(LARGEST_STEP))

    def learned(self) -> QParams:
        """Return the qparams of the owner, with what was learned."""
        return replace(self._qparams, scale=(self._qparams.scale * self.factor.exp()).detach())

    def finish(self, scale: Tensor) -> None:
        """Let the simulation round by a scale of the owner."""
        self._qparams = replace(self._qparams, scale=scale.to(self._qparams.scale))
        self.factor.data.zero_()
        for module, factor in self._modules.values():
            module.scale.copy_(self._qparams.scaled(factor).scale)


@dataclass(slots=True)
class BlockParts:
    """All that is learned of a block."""

    layers: dict[Node, LearnedLayer]
    scales: list[LearnedScale]
    roundings: dict[Node, StaticFakeQuantize]
    """All nodes of the block that round a value for the whole tensor."""
    end: Node
    _scale_at: dict[Node, LearnedScale] = field(init=False)

    def __post_init__(self) -> None:
        self._scale_at = {node: scale for scale in self.scales for node in scale.nodes}

    def count(self) -> int:
        """Count the weights whose rounding is learned."""
        return sum(layer.rounding.V.numel() for layer in self.layers.values())

    def last_layer(self, order: Sequence[Node]) -> LearnedLayer | None:
        """Return the learned layer that runs last; None if another layer runs behind it, or there is none."""
        calls = [node for node in order if node in self.layers or isinstance(module_of(node), FakeQuantizedWeight)]
        return self.layers.get(calls[-1]) if calls else None

    def in_float(self) -> dict[Node, Callable[..., Any]]:
        """Return what is called for the float model, which measures layers on its way."""
        return {**self._unrounded(), **{node: layer.measured for node, layer in self.layers.items()}}

    def weights_alone(self) -> dict[Node, Callable[..., Any]]:
        """Return what is called for rounded weights and float values."""
        return {**self._unrounded(), **{node: layer.rounded for node, layer in self.layers.items()}}

    def learned(self, masks: Masks | None) -> dict[Node, Callable[..., Any]]:
        """Return what is called to learn: roundings drop what ``masks`` say, but for the one at the end."""

        def rounding(node: Node) -> Callable[[Tensor], Tensor]:
            def call(x: Tensor) -> Tensor:
                drawn = None if masks is None or node is self.end else masks.draw(x)
                return self._round(node, x, drawn)

            return call

        return {**self.layers, **{node: rounding(node) for node in self.roundings}}

    def state(self) -> dict[str, Tensor]:
        """Return all that was learned until now, by name; detached."""
        found: dict[str, Tensor] = {}
        for layer in self.layers.values():
            found[f"V.{layer.root}"] = layer.rounding.V.detach().clone()
            bias = layer.learned_bias()
            if bias is not None:
                found[f"bias.{layer.root}"] = bias.detach().clone()
        return found | {f"scale.{scale.owner.name}": scale.learned().scale for scale in self.scales}

    def finish(self, state: Mapping[str, Tensor]) -> None:
        """Let the simulation give what was learned, as ``state`` holds it."""
        for layer in self.layers.values():
            layer.finish(state[f"V.{layer.root}"], state.get(f"bias.{layer.root}"))
        for scale in self.scales:
            scale.finish(state[f"scale.{scale.owner.name}"])

    def _round(self, node: Node, x: Tensor, mask: Tensor | None) -> Tensor:
        module, learned = self.roundings[node], self._scale_at.get(node)
        scale = module.scale if learned is None else learned.scale_at(node)
        limits = (module.scheme.quant_min, module.scheme.quant_max)
        if learned is None and mask is None:
            result: Tensor = module(x)
            return result
        found: Tensor = _RoundedInPart.apply(x, scale, module.zero_point.float(), mask, *limits)
        return found

    def _unrounded(self) -> dict[Node, Callable[..., Any]]:
        return dict.fromkeys(self.roundings, lambda x: x)


class Masks:
    """Says which values are rounded: each with the same probability, drawn once and read at another place each time.

    Args:
        drop: Probability that a value is not rounded.
        generator: Draws.
    """

    def __init__(self, drop: float, generator: Generator) -> None:
        self._drop, self._generator = drop, generator
        self._drawn = torch.empty(0, dtype=torch.bool)

    def draw(self, x: Tensor) -> Tensor:
        """Return a mask of the shape and the strides of ``x``: True where its values are rounded."""
        size = x.numel()
        if len(self._drawn) < 2 * size:
            self._drawn = torch.rand(2 * size, generator=self._generator) >= self._drop
        start = int(torch.randint(len(self._drawn) - size + 1, (1,), generator=self._generator))
        mask = self._drawn[start : start + size].to(x.device)
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            shape = x.shape
            return mask.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
        return mask.view(x.shape)


class _RoundedInPart(torch.autograd.Function):
    """Fake quantization of the values that a mask says, with the gradients of LSQ for the scale."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, mask: Tensor | None, low: int, high: int
    ) -> Tensor:
        ctx.save_for_backward(x, scale, zero_point, mask)
        ctx.limits = low, high
        y = fake_quantize_per_tensor_affine(x, scale, zero_point.int(), low, high)
        return y if mask is None else torch.where(mask, y, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point, mask = ctx.saved_tensors
        (grad,) = gradients
        rounded = grad if mask is None else torch.where(mask, grad, 0.0)
        of_x, of_scale, _ = fake_quantize_learnable_per_tensor_affine_backward(
            rounded, x, scale.detach(), zero_point, *ctx.limits
        )
        if mask is not None and ctx.needs_input_grad[0]:
            of_x = torch.where(mask, of_x, grad)
        return of_x, of_scale, None, None, None, None


def mixed(quantized: Mapping[Node, Any], exact: Mapping[Node, Any], masks: Masks | None) -> dict[Node, Any]:
    """Return what a block reads: quantized values, and those of the float model where the masks drop them."""
    if masks is None:
        return dict(quantized)
    return {
        node: torch.where(masks.draw(value), value, exact[node])
        if isinstance(value, Tensor) and value.is_floating_point() and node.op != "get_attr"
        else value
        for node, value in quantized.items()
    }
