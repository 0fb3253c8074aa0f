"""Whole torchvision networks: they go through with no edit, nearly all of them as int8, and every form agrees."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.ao.quantization as ao
from torch import Tensor, nn
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import fxquant as fxq
from fxquant.measure.parity import measure_parity
from fxquant.samples.networks import mobilenet_v2, random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch

INT8_SHARE = 0.99
"""Multiply-accumulates that must become int8."""
AGREEMENT = 0.5
"""dB that int8 may be away from the simulation, or below torch.ao: values that round the other way."""
SIDE = 64
"""Pixels: small images, so that six networks take seconds. Their last maps are small, which costs all tools many dB."""

NETWORKS = ("resnet18", "squeezenet1_1")

SLOW = (
    "alexnet",
    "googlenet",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "regnet_y_400mf",
    "resnet50",
    "shufflenet_v2_x1_0",
)
"""Networks whose joins, gates, groups and shuffles other tests have on smaller models, mobilenet_v2 below, trained."""

MIN_MAX = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.uint8), fxq.get_default_qconfig().weight)
"""The observers that torch.ao gets here: on such small images others change a result by more than tools do."""


def sqnr(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*NETWORKS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_network_goes_through_with_no_edit(name):
    x = torch.randn(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    model = random_network(name, [x])
    prepared = fxq.calibrate(fxq.prepare(model, x[:1], strict=True), [x], progress=False)
    assert torch.equal(prepared(x), model(x))
    assert prepared.coverage().int8_macs >= INT8_SHARE

    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    expected = model(x)
    assert abs(sqnr(expected, int8(x)) - sqnr(expected, simulated(x))) < AGREEMENT
    alike = fxq.convert(fxq.calibrate(fxq.prepare(model, x[:1], MIN_MAX), [x], progress=False))
    assert sqnr(expected, alike(x)) > sqnr(expected, torch_ao(model, [x])(x)) - AGREEMENT
    called = [type(int8.get_submodule(n.target)).__name__ for n in int8.graph.nodes if n.op == "call_module"]
    assert (called.count("Quantize"), called.count("Dequantize")) == (1, 0)  # the last layer gives real numbers
    assert measure_parity(int8, simulated, (x[:1],)).breaches == ()


@pytest.fixture(scope="module")
def calibration() -> list[Tensor]:
    return calibration_batches(batch_size=16, num_batches=4)


@pytest.fixture(scope="module")
def mobilenet() -> nn.Module:
    return mobilenet_v2()


@pytest.fixture(scope="module")
def prepared_mobilenet(mobilenet, calibration) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(mobilenet, calibration[0][:1]), calibration, progress=False)


@pytest.mark.slow
def test_real_weights_on_real_photographs(mobilenet, prepared_mobilenet, calibration):
    photographs, _ = labelled_batch()
    expected, int8 = mobilenet(photographs), fxq.convert(prepared_mobilenet)
    # One at a time, as users do: such calls run on our own kernels, which give the same bits on every machine.
    got = torch.cat([int8(photograph[None]) for photograph in photographs])
    assert sqnr(expected, got) >= 16
    # Of one, float gives 38.6 % to its first answer and 38.3 % to its second.
    assert int((expected.argmax(1) == got.argmax(1)).sum()) >= 18
    assert sqnr(expected, got) >= sqnr(expected, torch_ao(mobilenet, calibration)(photographs)) - 0.3


def test_the_contract_holds_on_real_photographs(prepared_mobilenet):
    int8, simulated = fxq.convert(prepared_mobilenet), fxq.convert(prepared_mobilenet, to="fake_quant")
    parity = measure_parity(int8, simulated, (labelled_batch()[0][:1],))
    assert len(parity.rows) == 54
    assert parity.breaches == ()


def torch_ao(model: nn.Module, calibration: list[Tensor]) -> nn.Module:
    """The same with torch.ao's FX mode, onednn engine: same images, same kind of observers."""
    engine = torch.backends.quantized.engine
    qconfig = ao.QConfig(
        activation=ao.MinMaxObserver.with_args(dtype=torch.quint8),
        weight=ao.PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric),
    )
    torch.backends.quantized.engine = "onednn"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # all of torch.ao warns that it is going away
            prepared = prepare_fx(copy.deepcopy(model), ao.QConfigMapping().set_global(qconfig), (calibration[0],))
            for batch in calibration:
                prepared(batch)
            return convert_fx(prepared)
    finally:
        torch.backends.quantized.engine = engine
