"""One observer for each value that is measured, and who is shown which value."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.calibration.observers import make_observers, observers_by_node
from fxquant.observers.channel_means import ChannelMeans
from fxquant.plan.spec import Means, Observed, TensorRef
from tests.outputs import rounding_outputs

X = torch.randn(2, 3, 8, 8)


def prepared(activation: type = fxq.MinMaxObserver) -> fxq.Quantizer:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    qconfig = fxq.QConfig(activation=activation, weight=fxq.get_default_qconfig().weight)
    return fxq.prepare(model, X, rounding_outputs(qconfig))


def test_activations_and_means_are_measured_and_weights_are_not() -> None:
    plan = prepared().plan
    observers = make_observers(plan)
    measured = {ref.name for ref, policy in plan.policies.items() if ref.kind != "parameter"}
    assert dict(observers.named_children()).keys() == measured
    for ref, policy in plan.policies.items():
        if isinstance(policy, Means):
            assert isinstance(observers[ref.name], ChannelMeans)
    assert isinstance(observers["_1"], fxq.MinMaxObserver)


def test_a_fake_quantize_only_observes() -> None:
    observers = make_observers(prepared(fxq.FakeQuantize).plan)
    assert observers["_1"](X) is X


def test_a_value_is_shown_to_its_watchers_and_its_observers() -> None:
    plan = prepared().plan
    observers, watcher = make_observers(plan), nn.Identity()
    shown = observers_by_node(plan, observers, {"_1": [watcher], "other": [watcher]})
    means = [
        observers[ref.name]
        for ref, policy in plan.policies.items()
        if isinstance(policy, Means) and policy.value == "_1"
    ]
    assert isinstance(plan.policies[TensorRef("_1")], Observed)
    assert shown["_1"][0] is watcher
    assert {id(each) for each in shown["_1"][1:]} == {id(each) for each in (observers["_1"], *means)}
    assert shown["other"] == [watcher]
