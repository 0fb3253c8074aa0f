"""MobileNetV2 with its real weights, against torch.ao's FX graph mode with the same images and the same observers."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import sqnr
from fxquant.samples.networks import mobilenet_v2
from fxquant.samples.photographs import calibration_batches, labelled_batch

LEAST_SQNR = 14.0
"""dB of the logits: what simple post-training quantization, per channel, gives this network with min-max ranges."""
SLACK = 0.3
"""dB that another order of float operations may cost."""
LEAST_AGREEMENT = 19
"""Of 20 images; float itself is unsure, below 50 %, of three of them."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return mobilenet_v2()


@pytest.fixture(scope="module")
def calibration() -> list[Tensor]:
    return calibration_batches(16, 2)


def torch_ao_int8(model: nn.Module, batches: list[Tensor]) -> nn.Module:
    """What torch.ao makes for its onednn engine: min-max activations, weights per channel."""
    engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "onednn"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch.ao is deprecated is no news
            from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver, QConfig, QConfigMapping
            from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

            config = QConfig(
                activation=MinMaxObserver.with_args(dtype=torch.quint8, qscheme=torch.per_tensor_affine),
                weight=PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric),
            )
            prepared = prepare_fx(copy.deepcopy(model), QConfigMapping().set_global(config), (batches[0],))
            for batch in batches:
                prepared(batch)
            converted = convert_fx(prepared)
            converted(batches[0][:1])  # what it warns of once, it warns of here
            return converted
    finally:
        torch.backends.quantized.engine = engine


def test_accuracy_on_photographs(model: nn.Module, calibration: list[Tensor]) -> None:
    prepared = fxq.prepare(model, calibration[0][:1])
    ours = fxq.convert(fxq.calibrate(prepared, calibration, progress=False))
    theirs = torch_ao_int8(model, calibration)
    images, _ = labelled_batch()
    with torch.no_grad():
        exact, got, peer = model(images), ours(images), theirs(images)
    assert sqnr(exact, got) >= LEAST_SQNR
    assert sqnr(exact, got) >= sqnr(exact, peer) - SLACK
    assert int((got.argmax(dim=1) == exact.argmax(dim=1)).sum()) >= LEAST_AGREEMENT
