"""Scales that are powers of two: chosen by error, kept by all that chooses scales, refused where any value may come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.values import decode, encode
from fxquant.errors import SpecError
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.observers.qparams import choose_qparams
from fxquant.plan.spec import Dynamic, QScheme

SCHEMES = {
    "symmetric": QScheme(bits=4, symmetric=True, power_of_two=True),
    "affine": QScheme(bits=8, signed=False, power_of_two=True),
}


def is_power(scale: Tensor) -> bool:
    return bool((torch.frexp(scale)[0] == 0.5).all())


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("ends", [(-1.0, 1.0), (0.0, 6.0), (-0.3, 2.9), (-4.0, -1.0), (0.0, 0.0)])
def test_of_two_neighbours_the_one_with_less_error(name: str, ends: tuple[float, float]) -> None:
    scheme, (low, high) = SCHEMES[name], (torch.tensor([end]) for end in ends)
    found = choose_qparams(low, high, scheme)
    free = choose_qparams(low, high, QScheme(bits=scheme.bits, signed=scheme.signed, symmetric=scheme.symmetric))
    assert is_power(found.scale)
    assert 0.5 <= float(found.scale / free.scale) <= 2
    if ends == (0.0, 0.0):
        return
    x = torch.linspace(*ends, 20001)
    error = (fake_quantize(x, found.scale, found.zero_point, scheme) - x).square().sum()
    for factor in (0.5, 2.0):
        scale = found.scale * factor
        if not 0.5 < float(scale / free.scale) < 2:
            continue
        steps = scheme.quant_min - (low.clamp(max=0) / scale).round()
        zero_point = found.zero_point if scheme.symmetric else steps.clamp(0, 255).int()
        other = (fake_quantize(x, scale, zero_point, scheme) - x).square().sum()
        assert error <= other * 1.001


def test_a_scale_that_is_a_power_stays() -> None:
    found = choose_qparams(torch.tensor([-0.9375]), torch.tensor([0.9375]), SCHEMES["symmetric"])
    assert found.scale.tolist() == [0.125]


@pytest.mark.parametrize("observer", [fxq.MinMaxObserver, fxq.HistogramObserver, fxq.MSEObserver])
def test_observers_choose_them(observer: Any) -> None:
    made = observer(scheme=SCHEMES["affine"])
    made(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    assert is_power(made.qparams().scale)


def network() -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
        ).eval(), torch.randn(32, 8)


def prepared(backend: str = "reference") -> fxq.Quantizer:
    model, x = network()
    weight = QScheme(bits=4, symmetric=True, axis=0, power_of_two=True)
    qconfig = fxq.QConfig(
        activation=fxq.HistogramObserver.with_args(scheme=SCHEMES["affine"]),
        weight=fxq.PerChannelMinMaxObserver.with_args(scheme=weight, ch_axis=0),
        correct_bias=True,
    )
    return fxq.calibrate(fxq.prepare(model, x, qconfig, backend=backend), [x], progress=False)


def test_all_that_chooses_scales_keeps_them(tmp_path: Path) -> None:
    start, x = prepared(), network()[1]
    results = {
        "plain": start,
        "gptq": fxq.gptq(start, [x], progress=False),
        "adaround": fxq.adaround(start, [x], iterations=3, progress=False),
        "statistics": fxq.correct_statistics(start, [x], progress=False),
    }
    for name, result in results.items():
        reference = fxq.convert(result, to="reference")
        assert all(is_power(qparams.scale) for qparams in reference.quant_plan.qparams.values()), name
    fxq.save(start, tmp_path / "model.fxq")
    loaded = fxq.load(tmp_path / "model.fxq")
    assert torch.equal(fxq.convert(loaded, to="reference")(x), fxq.convert(start, to="reference")(x))
    fxq.qparams(start).save(tmp_path / "qparams.json")
    applied = fxq.apply_qparams(prepared(), tmp_path / "qparams.json")
    assert torch.equal(fxq.convert(applied, to="reference")(x), fxq.convert(start, to="reference")(x))


def test_files_from_before_there_were_any_are_read() -> None:
    data = encode(QScheme(bits=4))
    assert "power_of_two" not in data["v"]
    assert decode(data) == QScheme(bits=4)
    assert decode(encode(SCHEMES["affine"])) == SCHEMES["affine"]


def test_where_any_value_may_come_they_are_refused() -> None:
    scheme = SCHEMES["affine"]
    assert str(scheme) == "uint8 affine per tensor, powers of two"
    with pytest.raises(SpecError, match="FusedMovingAvgObsFakeQuantize chooses scales of any value"):
        fxq.FusedMovingAvgObsFakeQuantize(fxq.MovingAverageMinMaxObserver, None, None, scheme=scheme)
    with pytest.raises(SpecError, match="what each call measures gets scales of any value"):
        Dynamic(scheme)
    with pytest.raises(SpecError, match="scales that are powers of two belong to integer zero points"):
        QScheme(axis=0, float_qparams=True, power_of_two=True)
