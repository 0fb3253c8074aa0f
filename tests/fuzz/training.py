"""The first step of quantization-aware training, beside that of float."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.fake_quantize.presets import default_fused_act_fake_quant, default_fused_per_channel_wt_fake_quant
from tests.fuzz.case import Case
from tests.fuzz.compare import floats_of
from tests.fuzz.inputs import Values
from tests.fuzz.noise import add_noise_to_weights, with_noise
from tests.fuzz.source import draw

LOSS_SHARE = 0.05
"""How far the loss may be from that of float."""
COSINE = 0.98
"""Of the angle between all gradients, and those of float."""
MARGIN = 20.0
"""How many times as far the gradients may be as those of float with noise, where that alone turns them by more. A norm
of values that are nearly the same has such gradients."""
UNCLIPPED = fxq.get_default_qat_qconfig_mapping().set_global(
    fxq.QConfig(default_fused_act_fake_quant, default_fused_per_channel_wt_fake_quant.with_args(quant_min=-127))
)
"""The default, but the largest weight of a channel lies on the last step. There it lies half a step beyond if it is
positive, is clipped, and so has no gradient, which is much of all that a channel of few weights has."""
PACKED = ("in_proj_weight", "in_proj_bias")
"""Parameters of an attention that become three, of its projections."""


@dataclass(frozen=True)
class Step:
    """Loss and gradients, the latter by the names of parameters."""

    loss: float
    gradients: dict[str, Tensor]


def step_of(model: nn.Module, values: Values, targets: list[Tensor]) -> Step:
    """The mean squared distance to targets, and its gradients."""
    torch.manual_seed(0)
    total = torch.zeros(())
    for result, target in zip(floats_of(model(*values)), targets, strict=True):
        total = total + ((result - target) / target.square().mean().sqrt()).square().mean()
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
    """What differs from the first step of float; empty if nothing does."""
    targets = targets_of(case)
    try:
        float_ = step_of(case.training_model(), case.example, targets)
    except RuntimeError:  # a model that float cannot train, with a change in place of what a gradient needs
        return ""
    for qconfig in (None, UNCLIPPED):
        trained = case.qat_of(case.training_model(), qconfig)
        ours = step_of(trained, case.example, targets)
        gradients = by_name_of(float_.gradients, ours.gradients, dict(trained.named_parameters()))
        if missing := sorted(float_.gradients.keys() - gradients.keys()):
            return f"no gradient of {', '.join(missing)}"
        off = abs(ours.loss - float_.loss) / float_.loss
        turned = 1 - cosine(float_.gradients, gradients)
        if off <= LOSS_SHARE and turned <= 1 - COSINE:
            return ""
    control = case.training_model()
    add_noise_to_weights(control, case.seed)
    noisy = step_of(control, with_noise(case, 0), targets)
    if not off <= max(LOSS_SHARE, MARGIN**0.5 * abs(noisy.loss - float_.loss) / float_.loss):
        return f"the loss is {ours.loss:.5g}, of float {float_.loss:.5g}"
    if not turned <= max(1 - COSINE, MARGIN * (1 - cosine(float_.gradients, noisy.gradients))):
        return f"the cosine of the gradients is {1 - turned:.4f}"
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
