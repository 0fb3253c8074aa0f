"""Qparams in the formats of other tools: files written by hand from their documents are read, ours are like them."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import InputError, SpecError, UnknownNameError
from tests.sampling import one_of


class Net(nn.Module):
    """Two layers, with a pool that shares qparams between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


X = torch.linspace(-1, 1, 2 * 36).view(2, 1, 6, 6).sin()


def prepare(qconfig: Any = None) -> Any:
    torch.manual_seed(0)
    output = fxq.QConfig(
        activation=fxq.MinMaxObserver,
        weight=fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric"),
        output=fxq.MinMaxObserver,
    )
    return fxq.prepare(Net().eval(), X, qconfig or output)


def qparams_of(applied: Any) -> dict[str, tuple[list[float], list[int]]]:
    return {row.name: (row.qparams.scale.tolist(), row.qparams.zero_point.tolist()) for row in fxq.qparams(applied)}


def test_the_names_of_the_model() -> None:
    prepared = fxq.calibrate(prepare(), [X], progress=False)
    rows = {row.name: row.shared for row in fxq.qparams(prepared)}
    assert rows == {"x": (), "relu": ("max_pool2d", "flatten"), "fc": (), "conv.weight": (), "fc.weight": ()}


OVERRIDES = {
    "x": [{"quant_type": "QUInt8", "scale": 0.0078125, "zero_point": 128}],
    "relu": [{"quant_type": "QuantType.QUInt8", "scale": 0.015625, "zero_point": 0}],
    "max_pool2d": [{"quant_type": "QUInt8", "scale": 0.015625, "zero_point": 0}],
    "fc": [{"quant_type": "QInt8", "scale": 0.03125, "zero_point": -3}],
    "conv.weight": [
        {"axis": 0, "quant_type": "QInt8", "scale": 0.0025, "zero_point": 0},
        {"scale": 0.005, "zero_point": 0},
    ],
}

KIND = {"enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": False}

AIMET_1 = {
    "version": "1.0.0",
    "activation_encodings": [
        {"name": "x", **KIND, "scale": [0.0078125], "offset": [-128]},
        {"name": "relu", **KIND, "scale": [0.015625], "offset": [0]},
        {"name": "fc", **KIND, "scale": [0.03125], "offset": [-125]},
    ],
    "param_encodings": [
        {
            "name": "conv.weight",
            "enc_type": "PER_CHANNEL",
            "dtype": "INT",
            "bw": 8,
            "is_sym": True,
            "scale": [0.0025, 0.005],
            "offset": [-128, -128],
        },
    ],
    "quantizer_args": {"activation_bitwidth": 8},
    "excluded_layers": [],
}

AIMET_2 = {
    "version": "2.0.0",
    "encodings": [
        {"name": "x", "y_scale": 0.0078125, "y_zero_point": 128, "output_dtype": "uint8"},
        {"name": "relu", "y_scale": 0.015625, "output_dtype": "uint8"},
        {
            "name": "fc",
            "y_scale": 0.03125,
            "y_zero_point": -3,
            "output_dtype": "int8",
            "axis": None,
            "block_size": None,
        },
        {"name": "conv.weight", "y_scale": [0.0025, 0.005], "y_zero_point": None, "axis": 0, "output_dtype": "int8"},
    ],
}

WANTED = {
    "x": ([0.0078125], [128]),
    "relu": ([0.015625], [0]),
    "fc": ([0.03125], [125]),
    "conv.weight": (torch.tensor([0.0025, 0.005]).tolist(), [0, 0]),
}
"""All three say the same; -3 of int8 is 125 of the uint8 that the plan has."""


@pytest.mark.parametrize("data", [OVERRIDES, AIMET_1, AIMET_2], ids=["onnxruntime", "aimet 1.0.0", "aimet 2.0.0"])
def test_files_by_hand(data: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(data))
    found = qparams_of(fxq.apply_qparams(prepare(), tmp_path / "a.json"))
    assert {name: found[name] for name in WANTED} == WANTED
    assert fxq.convert(fxq.apply_qparams(prepare(), tmp_path / "a.json"))(X).isfinite().all()


@pytest.mark.parametrize("format", ["onnxruntime", "aimet-1.0.0", "aimet-2.0.0"])
def test_written_and_read_the_model_is_the_same(format: Any, tmp_path: Path) -> None:
    prepared = fxq.calibrate(prepare(), [X], progress=False)
    table = fxq.qparams(prepared)
    table.save(tmp_path / "a.json", format=format)
    applied = fxq.apply_qparams(prepare(), tmp_path / "a.json")
    assert torch.equal(fxq.convert(applied)(X), fxq.convert(prepared)(X))
    assert qparams_of(applied) == qparams_of(prepared)


class Tripled(Net):
    """Shares qparams with a factor between the scales, by which not each float32 can be multiplied and divided."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((torch.relu(self.conv(x)) * 3.0).flatten(1)[:, :8])


@pytest.mark.parametrize("format", one_of(2, ["onnxruntime", "aimet-1.0.0", "aimet-2.0.0"]))
def test_a_factor_between_scales(format: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    prepared = fxq.prepare(Tripled().eval(), X)  # a table is applied to a copy of it
    fxq.qparams(fxq.calibrate(copy.deepcopy(prepared), [X], progress=False)).save(tmp_path / "own.json")
    data = json.loads((tmp_path / "own.json").read_text())
    for scale in torch.linspace(0.01, 0.02, 20).tolist():
        data["tensors"]["relu"]["scale"] = [scale]
        given = fxq.apply_qparams(prepared, data)
        fxq.qparams(given).save(tmp_path / "a.json", format=format, overwrite=True)
        assert qparams_of(fxq.apply_qparams(prepared, tmp_path / "a.json")) == qparams_of(given)


def test_what_is_written_has_the_words_of_the_documents(tmp_path: Path) -> None:
    table = fxq.qparams(fxq.apply_qparams(prepare(), OVERRIDES))
    written = {}
    for format in ("onnxruntime", "aimet-1.0.0", "aimet-2.0.0"):
        table.save(tmp_path / format, format=format)  # type: ignore[arg-type]
        written[format] = json.loads((tmp_path / format).read_text())
    assert written["onnxruntime"]["x"] == OVERRIDES["x"]
    assert written["onnxruntime"]["flatten"] == [{"quant_type": "QUInt8", "scale": 0.015625, "zero_point": 0}]
    assert written["onnxruntime"]["conv.weight"][1] == {
        "axis": 0, "quant_type": "QInt8", "scale": 0.005, "zero_point": 0,
    }  # fmt: skip
    one = written["aimet-1.0.0"]
    assert one["activation_encodings"][0] == AIMET_1["activation_encodings"][0]  # type: ignore[index]
    assert one["param_encodings"][0] == AIMET_1["param_encodings"][0]  # type: ignore[index]
    two = {item["name"]: item for item in written["aimet-2.0.0"]["encodings"]}
    assert two["x"] == AIMET_2["encodings"][0]  # type: ignore[index]
    assert two["conv.weight"] == {
        "name": "conv.weight", "output_dtype": "int8", "y_scale": [0.0025, 0.005], "y_zero_point": [0, 0], "axis": 0,
    }  # fmt: skip


def test_groups(tmp_path: Path) -> None:
    weight = fxq.PerChannelMinMaxObserver.with_args(bits=4, dtype=torch.int8, qscheme="per_channel_symmetric")
    only = fxq.QConfig(activation=fxq.PlaceholderObserver, weight=weight.with_args(group_size=4))
    mapping = fxq.get_default_qconfig_mapping().set_module_name("fc", only)
    prepared = fxq.calibrate(prepare(mapping), [X], progress=False)
    table = fxq.qparams(prepared)
    for format in ("aimet-1.0.0", "aimet-2.0.0"):
        table.save(tmp_path / format, format=format)  # type: ignore[arg-type]
        applied = fxq.apply_qparams(prepare(mapping), tmp_path / format)
        assert qparams_of(applied) == qparams_of(prepared)
    (item,) = (
        each for each in json.loads((tmp_path / "aimet-2.0.0").read_text())["encodings"] if each["name"] == "fc.weight"
    )
    assert (item["axis"], item["block_size"], item["output_dtype"]) == (1, 4, "int4")
    assert torch.tensor(item["y_scale"]).shape == (3, 2)
    (item,) = json.loads((tmp_path / "aimet-1.0.0").read_text())["param_encodings"][-1:]
    assert (item["enc_type"], item["block_size"], len(item["scale"])) == ("PER_BLOCK", 4, 6)
    with pytest.raises(InputError, match="TensorQuantOverrides cannot hold these qparams"):
        table.save(tmp_path / "c", format="onnxruntime")


def line(name: str, scale: float) -> str:
    return f"{name}: {struct.pack('!f', scale).hex()}"


def test_a_calibration_cache(tmp_path: Path) -> None:
    assert line("relu46", 0.0179033577) == "relu46: 3c92aa10"  # as NVIDIA's forum explains it
    lines = ["TRT-8601-EntropyCalibration2", line("x", 0.0078125), line("relu", 0.015625), line("fc", 0.03125), ""]
    (tmp_path / "a.cache").write_text("\n".join(lines))
    found = qparams_of(fxq.apply_qparams(prepare(), tmp_path / "a.cache"))
    wanted = {"x": ([0.0078125], [128]), "relu": ([0.015625], [128]), "fc": ([0.03125], [128])}
    assert {name: found[name] for name in wanted} == wanted
    assert "conv.weight" in found
    lines[2] = line("(Unnamed Layer* 3) [Activation]_output", 0.015625)
    (tmp_path / "a.cache").write_text("\n".join(lines))
    with pytest.raises(UnknownNameError, match="Unnamed Layer"):
        fxq.apply_qparams(prepare(), tmp_path / "a.cache")
    names = {"(Unnamed Layer* 3) [Activation]_output": "relu"}
    assert qparams_of(fxq.apply_qparams(prepare(), tmp_path / "a.cache", names=names)) == found


def changed(data: Any, change: Callable[[Any], object]) -> Any:
    data = json.loads(json.dumps(data))
    change(data)
    return data


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no scale": (changed(OVERRIDES, lambda data: data["x"][0].pop("scale")), InputError, "no scale and zero point"),
    "a float type": (
        changed(OVERRIDES, lambda data: data["x"][0].update(quant_type="QFLOAT8E4M3FN")),
        InputError,
        "of one type",
    ),
    "no list": (changed(OVERRIDES, lambda data: data.update(x=[1])), InputError, "no list of objects"),
    "a pool apart": (
        changed(OVERRIDES, lambda data: data["max_pool2d"][0].update(scale=0.5)),
        InputError,
        "other qparams than the one whose qparams it shares",
    ),
    "one channel of two": (
        changed(OVERRIDES, lambda data: data.update({"fc.weight": data["conv.weight"]})),
        SpecError,
        "got:      2\n  expected: 3",
    ),
    "an old version": (changed(AIMET_1, lambda data: data.update(version="0.6.1")), InputError, "unknown version"),
    "floats": (
        changed(AIMET_1, lambda data: data["activation_encodings"][0].update(dtype="FLOAT")),
        InputError,
        "none of integers",
    ),
    "twice": (
        changed(AIMET_1, lambda data: data["activation_encodings"].append(data["activation_encodings"][0])),
        InputError,
        "a tensor has qparams twice in the file",
    ),
    "a number as name": ({**OVERRIDES, 3: OVERRIDES["x"]}, InputError, "names of tensors are no strings"),
    "a truth value": (changed(OVERRIDES, lambda data: data["x"][0].update(scale=True)), SpecError, "that is no number"),
    "no names": (changed(AIMET_2, lambda data: data["encodings"][0].pop("name")), InputError, "objects with a name"),
    "a float dtype": (
        changed(AIMET_2, lambda data: data["encodings"][0].update(output_dtype="float8e4m3fn")),
        InputError,
        "none of integers",
    ),
    "a scale of a scale": (
        changed(AIMET_2, lambda data: data["encodings"][3].update(y_scale={"x": [1, 2], "x_scale": 0.1})),
        InputError,
        "none of integers",
    ),
}


def test_encodings_of_floats_are_passed_over() -> None:
    """AIMET writes an entry for tensors that stay float, too."""
    wanted = qparams_of(fxq.apply_qparams(prepare(), AIMET_1))
    floats = {"name": "elsewhere", "dtype": "FLOAT", "bw": 16, "enc_type": "PER_TENSOR"}
    data = changed(AIMET_1, lambda data: data["activation_encodings"].append(floats))
    assert qparams_of(fxq.apply_qparams(prepare(), data)) == wanted
    data = changed(AIMET_2, lambda data: data["encodings"].append({"name": "elsewhere", "output_dtype": "float16"}))
    assert qparams_of(fxq.apply_qparams(prepare(), data)) == qparams_of(fxq.apply_qparams(prepare(), AIMET_2))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read(name: str) -> None:
    data, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        fxq.apply_qparams(prepare(), data)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["TRT-8601-MinMax\nx: 3c0089\n", "TRT-8601-MinMax\nx = 3c008912\n", "TRT-8601-MinMax\n"]
)
def test_a_cache_of_another_form(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.cache").write_text(text)
    with pytest.raises(InputError, match="the calibration cache"):
        fxq.apply_qparams(prepare(), tmp_path / "a.cache")
