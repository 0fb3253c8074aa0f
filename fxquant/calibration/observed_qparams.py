"""The qparams that the observers of a plan choose: what was never observed is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.calibration.module_paths import module_paths_of
from fxquant.errors import CalibrationError, listing
from fxquant.observers.histogram import choose_together
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Fixed, Handled, Means, Observed, QParams, TensorRef


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
    policies = {ref: policy for ref, policy in plan.policies.items() if ref.kind != "parameter"}
    choose_together(observers[ref.name] for ref, policy in policies.items() if isinstance(policy, Observed))
    for ref, policy in policies.items():
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
            got=listing([str(place) for place in module_paths_of(missing, gm, plan).values()]),
            hint="call calibrate(prepared, data) before convert, with data that reaches every branch; "
            "convert(..., allow_uncalibrated=True) makes a model without ranges to load a state dict into",
        )
    return found
