"""Simulations of choices: each is what it would be if it were the first that is made."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.measure.parity import plan_of
from fxquant.precision.choices import choices_of
from fxquant.precision.configurations import configurations
from fxquant.precision.simulations import Simulations


def qconfig(largest: float) -> fxq.QConfig:
    """Return a configuration whose activations reach to a value."""
    weight = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0)
    return fxq.QConfig(activation=fxq.MinMaxObserver.with_args(eps=largest / 255), weight=weight)


def test_a_scale_that_a_bias_made_larger_is_that_of_one_input_alone() -> None:
    """int32 biases: a channel of tiny weights gets a scale by the scale of what it reads, which differs by choice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[2].weight[0] = 1e-12
        model[2].bias[0] = 3.0
    data = [torch.rand(8, 4)]
    prepared = fxq.prepare(model, data[0], qconfig(1e-3), backend="onnxruntime")
    fxq.calibrate(prepared, data, progress=False)
    narrow, wide = choices_of({"narrow": qconfig(1e-3), "wide": qconfig(1e3)})
    first, last = (unit.root for unit in prepared.plan.units)
    ref = prepared.plan.units[-1].roles["weight"]

    def scale_of(simulations: Simulations, choice: object) -> torch.Tensor:
        simulated = simulations.make({first: choice, last: narrow})  # type: ignore[dict-item]
        found: torch.Tensor = plan_of(simulated).qparams[ref].scale
        return found

    def fresh() -> Simulations:
        batches = [((each,), {}) for each in data]
        simulations = Simulations(prepared, configurations(prepared), batches, lambda: None)
        for choice in (narrow, wide):
            simulations.observe(choice)
        return simulations

    used = fresh()
    of_narrow = scale_of(used, narrow)
    of_wide = scale_of(used, wide)
    assert torch.equal(of_wide, scale_of(fresh(), wide))
    assert of_narrow[0] > 2 * of_wide[0]
