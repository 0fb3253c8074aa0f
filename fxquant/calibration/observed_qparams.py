"""The observers of a plan, and the qparams that they choose: what was never observed is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.calibration.module_paths import places_of
from fxquant.errors import CalibrationError, listing
from fxquant.fake_quantize.base import disable_fake_quant
from fxquant.observers.channel_means import ChannelMeans
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Fixed, Handled, Means, Observed, QParams, TensorRef


def make_observers(plan: QuantPlan) -> nn.ModuleDict:
    """A fresh observer for each value that is measured, under its name."""
    observers = nn.ModuleDict()
    for ref, policy in plan.policies.items():
        # Past add_module, which refuses the names of attributes: x.to(...) makes a value named "to".
        if ref.kind == "activation" and isinstance(policy, Observed):
            observers._modules[ref.name] = policy.observer()
        elif isinstance(policy, Means):
            observers._modules[ref.name] = ChannelMeans(policy.axis)
    return observers.apply(disable_fake_quant)  # calibration measures the float model


def means_of(plan: QuantPlan, observers: Mapping[str, Any]) -> dict[TensorRef, Tensor]:
    """Return the channel means that biases are corrected with: float64 [C] each."""
    found: dict[TensorRef, Tensor] = {}
    for ref, policy in plan.policies.items():
        observer = observers[ref.name] if isinstance(policy, Means) else None
        if observer is not None and (means := observer.means()) is not None:
            found[ref] = means
    return found


def qparams_of(
    gm: GraphModule,
    plan: QuantPlan,
    observers: Mapping[str, Any],
    handlers: Mapping[str, Any],
    allow_uncalibrated: bool = False,
) -> dict[TensorRef, QParams]:
    """Return the qparams of every activation that has its own.

    Args:
        gm: The prepared float graph.
        plan: Its plan.
        observers: Name of a value -> its observer.
        handlers: Root of a unit -> the user's handler.
        allow_uncalibrated: Give NaN as the scale of what was never observed.

    Raises:
        CalibrationError: something was never observed, and that is not allowed; the message lists all of it.
    """
    found: dict[TensorRef, QParams] = {}
    missing: list[TensorRef] = []
    for ref, policy in plan.policies.items():
        if ref.kind == "parameter":
            continue
        if isinstance(policy, Fixed):
            found[ref] = policy.qparams
        elif isinstance(policy, Handled):
            found[ref] = handlers[ref.name].qparams()
        elif isinstance(policy, Observed):
            observer = observers[ref.name]
            try:
                found[ref] = observer.qparams()
            except CalibrationError:
                missing.append(ref)
                unknown = torch.full((1,), float("nan"), dtype=torch.float32)
                found[ref] = QParams(observer.scheme, unknown, torch.zeros(1, dtype=torch.int32))
    if missing and not allow_uncalibrated:
        raise CalibrationError(
            f"{len(missing)} values have no range: no calibration batch held a finite number for them",
            got=listing([str(place) for place in places_of(missing, gm, plan).values()]),
            hint="call calibrate(prepared, data) before convert, with data that reaches every branch; "
            "convert(..., allow_uncalibrated=True) makes a model without ranges to load a state dict into",
        )
    return found


def observers_by_node(
    plan: QuantPlan, observers: nn.ModuleDict, watchers: Mapping[str, list[nn.Module]]
) -> dict[str, list[nn.Module]]:
    """Name of a node -> the observers that are to see its value, and those of ``watchers``."""
    found: dict[str, list[nn.Module]] = {name: list(modules) for name, modules in watchers.items()}
    for ref, policy in plan.policies.items():
        if ref.kind == "activation" and isinstance(policy, Observed):
            found.setdefault(ref.name, []).append(observers[ref.name])
        elif isinstance(policy, Means):
            found.setdefault(policy.value, []).append(observers[ref.name])
    return found
