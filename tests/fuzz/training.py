"""The first step of quantization-aware training, beside that of float."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.case import Case
from tests.fuzz.compare import floats_of
from tests.fuzz.half_step import changed_by_more, ends_with_gradients
from tests.fuzz.inputs import Values
from tests.fuzz.rounding import rounding
from tests.fuzz.source import draw

LOSS_SHARE = 0.05
"""How far the loss may be from that of float."""
COSINE = 0.98
"""Of the angle between all gradients, and those of float."""
ROUNDINGS = 64
"""Draws of the control. A value beside the threshold of a ReLU or a clamp, of which small models have few, falls on the
other side in some of them, and turns all gradients."""
ROUNDING_MARGIN = 1.5
"""How many times as far as in the worst of these loss and gradients may be."""
PACKED = ("in_proj_weight", "in_proj_bias")
"""Parameters of an attention that become three, of its projections."""


@dataclass(frozen=True)
class Step:
    """Loss and gradients, the latter by the names of parameters."""

    loss: float
    gradients: dict[str, Tensor]


class _DenseGradient(torch.autograd.Function):
    """Gives back what it gets, and a gradient whose elements lie one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def float_model_of(case: Case) -> nn.Module:
    """The float model, to train.

    torch (2.14.1) gives batch norms and instance norms wrong gradients where the gradient of the result lies in memory
    otherwise than the result, with the channels or the batch last say: theirs is dense.
    """
    model = case.training_model()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.register_forward_hook(lambda module, args, result: _DenseGradient.apply(result))
    return model


def step_of(model: nn.Module, values: Values, targets: list[Tensor]) -> Step:
    """The mean squared distance to targets, and its gradients."""
    torch.manual_seed(0)
    return _step(model, model(*values), targets)


def rounded_step_of(model: nn.Module, values: Values, targets: list[Tensor], seed: int) -> Step:
    """The same of a model whose operators round to 8 bits; its parameters are rounded, too."""
    torch.manual_seed(0)
    with rounding(model, seed) as mode:
        result = model(*map(mode.of, values))
    return _step(model, result, targets)


def _step(model: nn.Module, result: Any, targets: list[Tensor]) -> Step:
    total = torch.zeros(())
    for one, target in zip(floats_of(result), targets, strict=True):
        total = total + ((one - target) / target.square().mean().sqrt()).square().mean()
    total.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return Step(float(total.detach()), found)


def targets_of(case: Case) -> list[Tensor]:
    """Random, and of the size of the results."""
    results = floats_of(case.expected)
    sizes = [float(each.square().mean().sqrt()) if each.numel() else 1.0 for each in results]
    return [
        draw(case.seed + number, *each.shape) * max(size, 1e-6)
        for number, (each, size) in enumerate(zip(results, sizes, strict=True))
    ]


def first_step(case: Case) -> str:
    """What differs from the first step of float; empty if nothing does.

    Loss and gradients are those of float, with or without the ends of ranges, or as near to them as those of float
    whose operators round to 8 bits. That excuses nothing but rounding: a fake-quantize changes no value by more than
    half a step of its own range.
    """
    targets = targets_of(case)
    try:
        float_ = step_of(float_model_of(case), case.example, targets)
    except RuntimeError:  # with a change in place of what a gradient needs
        case.skipped["training, which float refuses"] += 1
        return ""
    for ends in (nullcontext, ends_with_gradients):
        trained = case.qat_of(case.training_model())
        with changed_by_more(trained) as far, ends(trained):
            ours = step_of(trained, case.example, targets)
        if far:
            return f"{', '.join(sorted(far))} change values by more than half a step"
        gradients = by_name_of(float_.gradients, ours.gradients, dict(trained.named_parameters()))
        if missing := sorted(float_.gradients.keys() - gradients.keys()):
            return f"no gradient of {', '.join(missing)}"
        off = abs(ours.loss - float_.loss) / float_.loss
        turned = 1 - cosine(float_.gradients, gradients)
        if off <= LOSS_SHARE and turned <= 1 - COSINE:
            return ""
    control = [rounded_step_of(float_model_of(case), case.example, targets, seed) for seed in range(ROUNDINGS)]
    farthest = max(
        (abs(each.loss - float_.loss) / float_.loss for each in control if each.loss == each.loss), default=0
    )
    if not off <= max(LOSS_SHARE, ROUNDING_MARGIN * farthest):
        return f"the loss is {ours.loss:.5g}, of float {float_.loss:.5g}; rounding takes it {farthest:.1%} away"
    angles = (1 - cosine(float_.gradients, each.gradients) for each in control)
    farthest = max((angle for angle in angles if angle == angle), default=0)
    if not turned <= max(1 - COSINE, ROUNDING_MARGIN * farthest):
        return f"the cosine of the gradients is {1 - turned:.4f}; rounding takes it to {1 - farthest:.4f}"
    return ""


def by_name_of(floats: dict[str, Tensor], ours: dict[str, Tensor], own: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of a model in training, by the names of the float model.

    Args:
        floats: Gradients of float.
        ours: Those of the model in training.
        own: Its parameters.
    """
    found: dict[str, Tensor] = {}
    for name in floats:
        path, _, last = name.rpartition(".")
        if name in ours:
            found[name] = ours[name]
        elif last in PACKED:
            parts = [f"{path}.{part}_proj.{last.removeprefix('in_proj_')}" for part in "qkv"]
            if any(part in ours for part in parts) and all(part in own for part in parts):
                found[name] = torch.cat([ours.get(part, torch.zeros_like(own[part])) for part in parts])
    return found


def cosine(floats: dict[str, Tensor], ours: dict[str, Tensor]) -> float:
    """Of the angle between all gradients."""
    if not floats:
        return 1.0
    one, two = (torch.cat([each[name].flatten().double() for name in floats]) for each in (floats, ours))
    if float(one.norm()) < 1e-6:
        return 1.0
    return float(torch.dot(one, two) / (one.norm() * two.norm()).clamp_min(1e-30))
