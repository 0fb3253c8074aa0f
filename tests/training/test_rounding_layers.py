"""Which weights learn, and on which grid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.measure.parity import plan_of
from fxquant.plan.spec import QParams, QScheme
from fxquant.training.rounding_layers import least_error_scale, rounding_layers


def qparams(scheme: QScheme, scale: Tensor) -> QParams:
    return QParams(scheme, scale, torch.zeros(len(scale), dtype=torch.int32))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_the_scale_of_least_error(axis: int | None) -> None:
    """No scale of a finer search is much better, channel by channel."""
    weight = torch.randn(6, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    scheme = QScheme(bits=3, symmetric=True, axis=axis)
    others = [] if axis is None else [d for d in range(4) if d != axis % 4]
    extremes = weight.abs().max().reshape(1) if axis is None else weight.abs().amax(others)
    observed = qparams(scheme, extremes / 3.5)
    best = least_error_scale(weight, observed)

    def errors(scale: Tensor) -> Tensor:
        error = (fake_quantize(weight, scale, observed.zero_point, scheme) - weight).square()
        return error.sum().reshape(1) if axis is None else error.sum(others)

    assert best.shape == observed.scale.shape
    assert bool((errors(best) <= errors(observed.scale)).all())
    finest = torch.stack([errors(observed.scale * part / 1000) for part in range(200, 1201)]).min(0).values
    assert bool((errors(best) <= 1.02 * finest).all())
    assert not torch.equal(best, observed.scale)


def simulated(qconfig: Any, model: nn.Module) -> Any:
    x = torch.randn(4, 4)
    return fxq.convert(
        fxq.calibrate(fxq.prepare(model, x, qconfig, backend="reference"), [x], progress=False), to="fake_quant"
    )


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (
            {"dtype": torch.int8},
            "AdaRound learns with symmetric qparams, and these are int8 affine per channel (axis 0)",
        ),
        (
            {"dtype": torch.int8, "qscheme": "per_channel_symmetric", "group_size": 2},
            "AdaRound learns without groups, and this is int8 symmetric per group of 2 (axis 0)",
        ),
    ],
)
def test_grids_that_cannot_be_learned_on_are_left(weight: dict[str, Any], reason: str) -> None:
    observer = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, **weight)
    model = simulated(
        fxq.QConfig(activation=fxq.MinMaxObserver, weight=observer), nn.Sequential(nn.Linear(4, 4)).eval()
    )
    layers, left = rounding_layers(model, plan_of(model), {}, "mse")
    assert layers == {}
    assert [(each.unit, each.reason) for each in left] == [("_0", reason)]


def test_weights_that_have_integers_of_their_own_are_left() -> None:
    class Own(nn.Module):
        pass

    layer = nn.Module()
    layer.weight_fake_quant = Own()
    model = simulated(None, nn.Sequential(nn.Linear(4, 4)).eval())
    layers, left = rounding_layers(model, plan_of(model), {"_0": layer}, "mse")
    assert layers == {}
    assert [each.reason for each in left] == ["Own has integers of its own"]


def test_layers_begin_with_the_nearest_step() -> None:
    model = simulated(None, nn.Sequential(nn.Linear(4, 4)).eval())
    layers, _ = rounding_layers(model, plan_of(model), {}, "observed")
    layer, there = layers["_0"], model.get_submodule("0")
    assert layer is not there
    rounded = layer.weight_fake_quant(layer.weight)
    inside = layer.weight.abs() < 127 * there.weight_fake_quant.scale.view(-1, 1)
    assert torch.equal(rounded[inside], there.weight_fake_quant(there.weight)[inside])


def learned_scales(method: str, prepared: fxq.Quantizer, x: Tensor) -> Tensor:
    options = {} if method == "gptq" else {"iterations": 3}
    made = getattr(fxq, method)(prepared, [x], progress=False, **options).convert(to="fake_quant")
    return next(found.scale for ref, found in made.quant_plan.qparams.items() if str(ref).startswith("0.weight"))


def four_bits(observer: Any, **arguments: Any) -> fxq.QConfig:
    weight = observer.with_args(bits=4, dtype=torch.int8, **arguments)
    return fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight)


@pytest.mark.parametrize("method", ["adaround", "reconstruct", "gptq"])
def test_scales_that_an_observer_fixes_stay(method: str) -> None:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    config = four_bits(fxq.FixedQParamsObserver, scale=0.3, zero_point=0, qscheme=torch.per_tensor_symmetric)
    prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 4)).eval(), x, config, backend="reference")
    fxq.calibrate(prepared, [x], progress=False)
    assert learned_scales(method, prepared, x).tolist() == [pytest.approx(0.3)]
