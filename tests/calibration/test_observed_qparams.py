"""What was never observed is an error that names it, whatever the observer."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import CalibrationError, FxQuantWarning
from fxquant.fake_quantize import LearnableFakeQuantize
from tests.outputs import rounding_outputs

X = torch.randn(2, 3, 8, 8)
ACTIVATIONS = {
    "histogram": fxq.HistogramObserver,
    "percentile": fxq.PercentileObserver,
    "mse": fxq.MSEObserver,
    "entropy": fxq.EntropyObserver,
    "minmax": fxq.MinMaxObserver,
    "moving average": fxq.MovingAverageMinMaxObserver,
    "fake-quantize": fxq.FakeQuantize,
    "fused fake-quantize": fxq.FusedMovingAvgObsFakeQuantize,
    "learnable": LearnableFakeQuantize,
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()


def prepared(kind: str) -> fxq.Quantizer:
    qconfig = fxq.QConfig(activation=ACTIVATIONS[kind], weight=fxq.get_default_qconfig().weight)
    return fxq.prepare(model(), X, rounding_outputs(qconfig))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
def test_nothing_is_converted_that_was_not_observed(kind, to):
    with pytest.raises(CalibrationError, match="3 values have no range") as caught:
        fxq.convert(prepared(kind), to=to)
    text = str(caught.value)
    for place in ("input_1 (0 input)", "_1 (0 output, 2 input)", "_2 (2 output)"):
        assert place in text


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_one_that_was_left_out_is_named_alone(kind):
    made = prepared(kind)
    made.observers["_1"].forward = lambda x: x
    made.observe(X)
    with pytest.raises(CalibrationError, match="1 values have no range") as caught:
        fxq.convert(made)
    assert "got:      _1 (0 output, 2 input)" in str(caught.value)


@pytest.mark.parametrize("batch", [torch.randn(0, 3, 8, 8), torch.full((1, 3, 8, 8), torch.nan)])
def test_empty_batches_and_nan_alone_are_no_observations(batch):
    made = prepared("histogram")
    made.observe(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)
        with pytest.raises(CalibrationError, match="3 values have no range"):
            fxq.convert(made)


def test_a_shell_needs_no_observations():
    shell = fxq.convert(prepared("histogram"), allow_uncalibrated=True)
    with pytest.raises(fxq.FxQuantError):
        shell(X)


def test_training_names_what_was_never_observed_too():
    qat = fxq.prepare_qat(model().train(), X)
    with pytest.raises(CalibrationError, match="input_1"):
        fxq.convert(qat)
