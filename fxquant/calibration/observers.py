"""Makes the observers of a plan, and tells which of them are to see the value of a node."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fxquant.fake_quantize.base import disable_fake_quant
from fxquant.observers.channel_means import ChannelMeans
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Means, Observed


def make_observers(plan: QuantPlan) -> nn.ModuleDict:
    """Make a fresh observer for each activation and each mean that is measured, under the name of its ``TensorRef``."""
    observers = nn.ModuleDict()
    for ref, policy in plan.policies.items():
        # Not by add_module, which refuses the names of attributes: x.to(...) makes a value named "to".
        if ref.kind == "activation" and isinstance(policy, Observed):
            observers._modules[ref.name] = policy.observer()
        elif isinstance(policy, Means):
            observers._modules[ref.name] = ChannelMeans(policy.axis)
    return observers.apply(disable_fake_quant)  # calibration measures the float model


def observers_by_node(
    plan: QuantPlan, observers: nn.ModuleDict, more: Mapping[str, list[nn.Module]]
) -> dict[str, list[nn.Module]]:
    """Return the observers that are to see the value of a node, by its name, and those of ``more``."""
    found: dict[str, list[nn.Module]] = {name: list(modules) for name, modules in more.items()}
    for ref, policy in plan.policies.items():
        if ref.kind == "activation" and isinstance(policy, Observed):
            found.setdefault(ref.name, []).append(observers[ref.name])
        elif isinstance(policy, Means):
            found.setdefault(policy.value, []).append(observers[ref.name])
    return found
