"""ObserverBase: what every observer can do; a user's own observer."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil

import torch
from torch import Tensor, nn

from fxquant import observers
from fxquant.observers import MinMaxObserver, ObserverBase, PerChannelMinMaxObserver, choose_qparams
from fxquant.plan.spec import QParams, QScheme


class LargestMagnitude(ObserverBase):
    """A user's own: -m to m, where m is the largest magnitude."""

    def __init__(self, bits: int = 8) -> None:
        super().__init__(QScheme(bits=bits, symmetric=True), dtype=torch.int8)
        self.register_buffer("magnitude", torch.tensor(0.0))

    def update(self, x: Tensor) -> None:
        self.magnitude.copy_(torch.maximum(self.magnitude, x.abs().max()))

    def qparams(self) -> QParams:
        return choose_qparams(-self.magnitude, self.magnitude, self.scheme)


def test_an_own_observer():
    observer = LargestMagnitude.with_args(bits=4)()
    x = torch.tensor([-7.5, 1.0], requires_grad=True)
    assert observer(x) is x
    assert observer(torch.empty(0)).numel() == 0
    scale, zero_point = observer.calculate_qparams()
    assert (scale.tolist(), zero_point.tolist()) == ([1.0], [0])
    assert (observer.quant_min, observer.quant_max) == (-8, 7)
    assert repr(observer) == "LargestMagnitude(int4 symmetric per tensor)"


def test_every_observer_can_be_imported_from_the_package():
    found = {
        kind.__name__
        for module in pkgutil.iter_modules(observers.__path__)
        for kind in vars(importlib.import_module(f"fxquant.observers.{module.name}")).values()
        if isinstance(kind, type) and issubclass(kind, ObserverBase) and not inspect.isabstract(kind)
    }
    inside = {"_MeasuresNothing", "ChannelMeans", "ExtremesObserver", "ObserverBase", "RangeObserver"}
    assert found - inside == {
        "EntropyObserver",
        "FixedQParamsObserver",
        "HistogramObserver",
        "MinMaxObserver",
        "MovingAverageMinMaxObserver",
        "MovingAveragePerChannelMinMaxObserver",
        "MSEObserver",
        "NoopObserver",
        "PerChannelMinMaxObserver",
        "PercentileObserver",
        "PlaceholderObserver",
    }
    assert found - inside <= set(observers.__all__)


def test_casting_a_model_leaves_statistics_in_float32():
    model = nn.Sequential(nn.Linear(2, 2), MinMaxObserver(), PerChannelMinMaxObserver())
    model(torch.randn(3, 2))
    before = copy.deepcopy(model)
    for cast in (model.half, model.double, model.bfloat16):
        cast()
        for index in (1, 2):
            for name, buffer in before[index].state_dict().items():
                kept = model[index].state_dict()[name]
                assert kept.dtype == buffer.dtype
                assert torch.equal(kept, buffer)
    assert model[0].weight.dtype == torch.bfloat16
    assert model.to("meta")[1].min_val.is_meta
