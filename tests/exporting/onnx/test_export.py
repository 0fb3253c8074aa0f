"""Files: what they hold, what runs them, and what is refused before anything is written."""

from __future__ import annotations

import builtins
import json
import logging
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import ArtifactError, ExportError, InputError, UnknownNameError
from fxquant.exporting.onnx import writing
from fxquant.exporting.qparams import FloatZeroPoints
from tests.sampling import one_of


class Net(nn.Module):
    """A residual block, a clamp, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.two, self.three = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, groups=8)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn(self.one(x))))
        x = F.relu(self.two(x) + x)
        return self.fc(F.relu6(self.three(x)).mean((2, 3)))


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
_DEFAULT = fxq.get_default_qconfig()
SEVEN_BITS = fxq.QConfig(_DEFAULT.activation, _DEFAULT.weight.with_args(reduce_range=True), correct_bias=True)
"""Of weights: where a processor lacks VNNI, kernels of the runtime add two products in 16 bits, and 8 bits overflow."""


def converted(
    model: nn.Module, x: Any = X, qconfig: Any = None, backend: str = "onnxruntime", to: str = "reference"
) -> Any:
    torch.manual_seed(0)
    if qconfig is None:
        qconfig = fxq.get_default_qconfig_mapping(backend)
        if backend != "tensorrt":  # which takes no uint8
            qconfig.set_global(SEVEN_BITS)
    prepared = fxq.prepare(model.eval(), x, qconfig, backend=backend)
    return fxq.convert(fxq.calibrate(prepared, [x], progress=False), to=to)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    """Outputs with the runtime's optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return [torch.from_numpy(array) for array in session.run(None, feeds)]


def kinds(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(path)).graph.node)


@pytest.fixture(scope="module")
def planned() -> Any:
    return converted(net())


@pytest.mark.slow
def test_the_file_computes_what_the_model_computes(planned, tmp_path):
    path = tmp_path / "net.onnx"
    batch = torch.export.Dim("batch")
    report = fxq.export_onnx(planned, path, X, dynamic_shapes=({0: batch},), input_names=["image"])
    for x in (X, torch.cat([X, X * 0.5, X[:1]])):
        assert torch.allclose(run(path, x)[0], planned(x), atol=1e-5)
    assert report.size == path.stat().st_size
    assert "Nothing was run" in str(report)
    found = kinds(path)
    assert (found["Relu"], found["Clip"], found["GlobalAveragePool"], found["ReduceMean"]) == (0, 0, 1, 0)
    stored = onnx.load(str(path))
    assert stored.graph.input[0].name == "image"
    assert [(entry.domain, entry.version) for entry in stored.opset_import] == [("", 21)]
    facts = {entry.key: entry.value for entry in stored.metadata_props}
    assert facts["fxquant.target"] == "onnxruntime"
    qparams = json.loads(facts["fxquant.qparams"])
    scales = {str(ref): each.scale.max().item() for ref, each in planned.quant_plan.qparams.items()}
    shared = [name for name in qparams if name in scales]
    assert len(shared) >= 6
    assert all(abs(qparams[name]["scale"] - scales[name]) < 1e-9 for name in shared)
    assert "/" not in "".join(node.name for node in stored.graph.node)
    assert b"site-packages" not in path.read_bytes()
    assert str(Path(__file__).parent).encode() not in path.read_bytes()


@pytest.mark.slow
def test_biases_are_int32(planned, tmp_path):
    fxq.export_onnx(planned, tmp_path / "net.onnx", X)
    stored = onnx.load(str(tmp_path / "net.onnx")).graph.initializer
    biases = [each for each in stored if each.data_type == onnx.TensorProto.INT32 and "zero_point" not in each.name]
    assert len(biases) == 4
    fxq.export_onnx(planned, tmp_path / "float.onnx", X, bias="float32")
    stored = onnx.load(str(tmp_path / "float.onnx")).graph.initializer
    assert not [each for each in stored if each.data_type == onnx.TensorProto.INT32]
    assert torch.allclose(run(tmp_path / "float.onnx", X)[0], planned(X), atol=1e-5)


@pytest.mark.parametrize("to", one_of(3, ["int8", "fake_quant", "reference"]))
def test_what_was_planned_for_the_cpu(to, tmp_path):
    model = converted(net(), backend="cpu", to=to)
    fxq.export_onnx(model, tmp_path / "net.onnx", X)
    assert torch.allclose(run(tmp_path / "net.onnx", X)[0], model(X), atol=0.05)
    assert (tmp_path / "net.onnx").stat().st_size < 20_000


@pytest.mark.parametrize("backend", one_of(2, ["openvino", "tensorrt"]))
def test_other_runtimes(backend, tmp_path):
    model = converted(net(), backend=backend)
    fxq.export_onnx(model, tmp_path / "net.onnx", X, target=backend)
    assert torch.allclose(run(tmp_path / "net.onnx", X)[0], model(X), atol=1e-5)
    types = {
        initializer.data_type
        for initializer in onnx.load(str(tmp_path / "net.onnx")).graph.initializer
        if initializer.dims == [] or list(initializer.dims) == []
    }
    assert (onnx.TensorProto.UINT8 in types) == (backend == "openvino")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(20, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm, self.mlp = nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.mlp(x)


TOKENS = torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(0))


def test_embeddings_and_attention(tmp_path):
    torch.manual_seed(0)
    model = converted(Attention(), TOKENS)
    fxq.export_onnx(model, tmp_path / "net.onnx", TOKENS)
    assert torch.allclose(run(tmp_path / "net.onnx", TOKENS)[0], model(TOKENS), atol=1e-4)
    stored = onnx.load(str(tmp_path / "net.onnx")).graph.initializer
    tables = [each.data_type for each in stored if list(each.dims) == [20, 16]]
    assert tables == [onnx.TensorProto.UINT8]
    assert kinds(tmp_path / "net.onnx")["Gemm"] >= 1


def test_int32_tokens_look_up_rows_with_float_zero_points(tmp_path):
    torch.manual_seed(0)
    tokens = TOKENS.int()
    model = converted(nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 3)), tokens, backend="cpu")
    assert any(isinstance(module, FloatZeroPoints) for module in fxq.explicit(model).modules())
    fxq.export_onnx(model, tmp_path / "net.onnx", tokens)
    assert torch.allclose(run(tmp_path / "net.onnx", tokens)[0], model(tokens), atol=1e-4)


class Rows(nn.Module):
    """Its input has a name that is also a constant's in graphs of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.two(F.relu(self.one(rows)))


@pytest.mark.parametrize(
    "names",
    one_of(3, [{}, {"input_names": ["shape"]}, {"output_names": ["rows"]}, {"output_names": ["shape"]}]),
    ids=str,
)
def test_names_of_inputs_and_outputs_are_no_constants(names, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    model = converted(Rows(), x)
    fxq.export_onnx(model, tmp_path / "net.onnx", x, **names)
    stored = onnx.load(str(tmp_path / "net.onnx")).graph
    assert not {each.name for each in stored.initializer} & {each.name for each in (*stored.input, *stored.output)}
    assert torch.allclose(run(tmp_path / "net.onnx", x)[0], model(x), atol=1e-5)


LINEAR_X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
BLOCKS = fxq.PerChannelMinMaxObserver.with_args(scheme=fxq.QScheme(bits=4, symmetric=True, axis=0, group_size=32))
NARROW = fxq.PerChannelMinMaxObserver.with_args(scheme=fxq.QScheme(bits=4, symmetric=True, axis=0))


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8)).eval()


@pytest.mark.parametrize(
    ("name", "qconfig", "wanted"),
    one_of(
        2,
        [
            ("dynamic", fxq.default_dynamic_qconfig, {"DynamicQuantizeLinear": 2}),
            ("blocks", fxq.QConfig(fxq.PlaceholderObserver, BLOCKS), {"QuantizeLinear": 0, "DequantizeLinear": 1}),
            ("7 bits", fxq.QConfig(fxq.MinMaxObserver.with_args(bits=7, dtype=torch.uint8), NARROW), {"Clip": 2}),
            (
                "weights alone",
                fxq.QConfig(fxq.PlaceholderObserver, NARROW),
                {"QuantizeLinear": 0, "DequantizeLinear": 2},
            ),
            ("16 bits", fxq.QConfig(fxq.MinMaxObserver.with_args(bits=16, dtype=torch.int8), NARROW), {"Clip": 0}),
            ("u16", fxq.QConfig(fxq.MinMaxObserver.with_args(scheme=fxq.QScheme(bits=16, signed=False)), NARROW), {}),
        ],
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_schemes(name, qconfig, wanted, tmp_path):
    mapping = fxq.QConfigMapping().set_global(qconfig)
    if name == "blocks":  # 48 columns are no whole number of blocks of 32
        mapping.set_module_name("2", None)
    model = converted(linear(), LINEAR_X, mapping)
    path = tmp_path / "net.onnx"
    fxq.export_onnx(model, path, LINEAR_X)
    assert torch.allclose(run(path, LINEAR_X)[0], model(LINEAR_X), atol=1e-4)
    assert {kind: kinds(path)[kind] for kind in wanted} == wanted
    halves = [each for each in onnx.load(str(path)).graph.initializer if each.data_type == onnx.TensorProto.INT4]
    assert bool(halves) == (name == "blocks")


def test_activations_behind_layers_that_measure_their_input(tmp_path):
    """ReLU and a clamp stand in the file as they are: the result is no integer that ends at their bounds."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8), nn.Hardtanh(-0.25, 0.125)).eval()
    model = fxq.convert(fxq.prepare(layers, LINEAR_X, fxq.default_dynamic_qconfig))
    path = tmp_path / "net.onnx"
    fxq.export_onnx(model, path, LINEAR_X)
    assert torch.allclose(run(path, LINEAR_X)[0], model(LINEAR_X), atol=1e-4)
    found = kinds(path)
    assert (found["DynamicQuantizeLinear"], found["Relu"], found["Clip"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ({"dtype": torch.uint8, "quant_min": 0, "quant_max": 127}, "uint8 [0, 127]"),
        ({"dtype": torch.int8, "qscheme": "per_tensor_symmetric"}, "int8 [-128, 127], symmetric"),
    ],
)
def test_ranges_that_no_operator_measures_at_run_time_are_refused(scheme, words, tmp_path):
    activation = fxq.PlaceholderObserver.with_args(**scheme, is_dynamic=True)
    qconfig = fxq.QConfig(activation=activation, weight=fxq.default_dynamic_qconfig.weight)
    model = converted(linear(), LINEAR_X, fxq.QConfigMapping().set_global(qconfig))
    with pytest.raises(ExportError) as caught:
        fxq.export_onnx(model, tmp_path / "net.onnx", LINEAR_X)
    assert str(caught.value).startswith("ONNX has no operator that measures this range while the model runs\n")
    assert f"got:      {words}\n" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_ranges_of_tokens_are_refused(tmp_path):
    model = fxq.convert(fxq.prepare(linear(), LINEAR_X, fxq.default_per_token_qconfig))
    with pytest.raises(ExportError) as caught:
        fxq.export_onnx(model, tmp_path / "net.onnx", LINEAR_X)
    words = "ONNX has no operator that measures the range of each token while the model runs\n"
    assert str(caught.value).startswith(words)
    assert "  expected: one range for the whole input\n" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_qparams_of_narrow_ranges_are_under_the_names_of_the_plan(tmp_path):
    narrow = fxq.QConfig(fxq.MinMaxObserver.with_args(bits=6), fxq.get_default_qconfig().weight)
    fxq.export_onnx(converted(net(), X, narrow), tmp_path / "net.onnx", X)
    facts = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "net.onnx")).metadata_props}
    qparams = json.loads(facts["fxquant.qparams"])
    assert not [name for name in qparams if "unclipped" in name]
    assert qparams["x"]["limits"] == [0, 63]
    assert qparams["x"]["dtype"] == "uint8"


class ReturnsItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x), x


@pytest.mark.parametrize(
    ("names", "inputs", "outputs"),
    one_of(
        2,
        [
            ({}, ["x"], ["linear", "x_out"]),
            ({"input_names": ["image"]}, ["image"], ["linear", "x"]),
            ({"output_names": ["y", "same"]}, ["x"], ["y", "same"]),
        ],
    ),
)
def test_an_input_that_is_returned_keeps_its_name(names, inputs, outputs, tmp_path):
    x = torch.randn(4, 8)
    report = fxq.export_onnx(converted(ReturnsItsInput(), x), tmp_path / "net.onnx", x, check=True, **names)
    graph = onnx.load(str(tmp_path / "net.onnx")).graph
    assert ([each.name for each in graph.input], [each.name for each in graph.output]) == (inputs, outputs)
    assert torch.equal(run(tmp_path / "net.onnx", x)[1], x)
    assert report.integer_kernels == 1  # what only moves floats is none


@pytest.mark.slow
def test_recurrent_layers_are_exported_without_a_word(tmp_path, logged):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.fc = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.lstm(x)[0])

    x = torch.randn(2, 5, 8)
    model = converted(Recurrent(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxq.export(model, x)
        fxq.export_onnx(model, tmp_path / "net.onnx", x)
    assert [record for record in logged.records if record.levelno >= logging.WARNING] == []
    assert torch.allclose(run(tmp_path / "net.onnx", x)[0], model(x), atol=1e-5)


@pytest.mark.slow
def test_weights_of_4_bits_may_be_packed(tmp_path):
    model = converted(linear(), LINEAR_X, fxq.QConfig(fxq.get_default_qconfig().activation, NARROW))
    sizes = []
    for weights in ("auto", "packed"):
        path = tmp_path / f"{weights}.onnx"
        fxq.export_onnx(model, path, LINEAR_X, weights=weights)
        assert torch.allclose(run(path, LINEAR_X)[0], model(LINEAR_X), atol=1e-4)
        sizes.append(path.stat().st_size)
    assert sizes[0] - sizes[1] > 64 * 48 / 2 - 200


@pytest.fixture(scope="module")
def planned_linear() -> Any:
    return converted(linear(), LINEAR_X)


def test_large_tensors_lie_beside_the_file(planned_linear, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "LARGEST_FILE", 100)
    path = tmp_path / "net.onnx"
    fxq.export_onnx(planned_linear, path, LINEAR_X)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]
    assert torch.allclose(run(path, LINEAR_X)[0], planned_linear(LINEAR_X), atol=1e-5)


@pytest.mark.slow
def test_a_second_file_is_overwritten_only_where_that_is_allowed(planned_linear, tmp_path, monkeypatch):
    path, second = tmp_path / "net.onnx", tmp_path / "net.onnx.data"
    second.write_text("before")
    fxq.export_onnx(planned_linear, path, LINEAR_X)  # needs none
    path.unlink()
    monkeypatch.setattr(writing, "LARGEST_FILE", 100)
    with pytest.raises(ArtifactError, match=r"the file exists already\n  at:       .*net\.onnx\.data\n"):
        fxq.export_onnx(planned_linear, path, LINEAR_X)
    assert (path.exists(), second.read_text()) == (False, "before")
    genuine = writing.os.replace

    def last_fails(source: Any, target: Any) -> None:
        if Path(target) == path:
            raise OSError(28, "No space left on device")
        genuine(source, target)

    path.write_text("before, too")
    with monkeypatch.context() as patched:
        patched.setattr(writing.os, "replace", last_fails)
        with pytest.raises(ArtifactError, match="No space left"):
            fxq.export_onnx(planned_linear, path, LINEAR_X, overwrite=True)
    assert (path.read_text(), second.read_text()) == ("before, too", "before")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted((path.name, second.name))
    fxq.export_onnx(planned_linear, path, LINEAR_X, overwrite=True)
    assert torch.allclose(run(path, LINEAR_X)[0], planned_linear(LINEAR_X), atol=1e-5)


class TestRefusals:
    def test_qparams_that_the_target_does_not_take(self, planned, tmp_path):
        with pytest.raises(ExportError) as caught:
            fxq.export_onnx(planned, tmp_path / "net.onnx", X, target="tensorrt")
        words = "target 'tensorrt' takes int8 with zero point 0\n  at:       x\n  got:      uint8, zero point"
        assert str(caught.value).startswith(words)
        assert str(caught.value).endswith("hint:     prepare(..., backend='tensorrt')")
        assert not list(tmp_path.iterdir())

    def test_signed_qparams_for_openvino(self, tmp_path):
        qconfig = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.int8), fxq.get_default_qconfig().weight)
        with pytest.raises(ExportError, match="target 'openvino' takes uint8, or int8 with zero point 0"):
            fxq.export_onnx(converted(linear(), LINEAR_X, qconfig), tmp_path / "net.onnx", LINEAR_X, target="openvino")

    @pytest.mark.parametrize(
        ("arguments", "error", "words"),
        [
            ({"opset": 18}, ExportError, "opset 18 cannot hold this model\n  got:      opset=18, target='onnxruntime'"),
            ({"opset": 99}, ExportError, "opset 99 was never tried"),
            ({"opset": "21"}, ExportError, "opset is no whole number\n  got:      opset='21'\n  expected: 21 to 23"),
            ({"target": "openvno"}, UnknownNameError, "unknown target\n  got:      'openvno'"),
            ({"bias": "int8"}, UnknownNameError, "unknown form of biases"),
            ({"weights": "int4"}, UnknownNameError, "unknown form of weights"),
        ],
    )
    def test_arguments(self, planned, tmp_path, arguments, error, words):
        with pytest.raises(error) as caught:
            fxq.export_onnx(planned, tmp_path / "net.onnx", X, **arguments)
        assert str(caught.value).startswith(words)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"input_names": ["a"], "output_names": ["a"]}, "a name stands for two inputs or outputs\n  got:      a"),
            ({"input_names": ["a", "b"]}, "input_names has too many names\n  got:      a, b\n  expected: at most 1"),
            ({"input_names": "ab"}, "input_names is no list of names\n  got:      'ab'"),
            ({"output_names": [None]}, "output_names is no list of names\n  got:      [None]"),
            ({"output_names": [""]}, "output_names is no list of names"),
            ({"example_kwargs": [1]}, "example_kwargs is no dict of keyword inputs\n  got:      [1]"),
            ({"example_inputs": None}, "there are no example inputs\n  got:      None"),
            ({"example_inputs": 3}, "the example inputs do not run through the model: "),
            ({"example_inputs": (X, X)}, "the example inputs do not fit the model's forward"),
            ({"example_inputs": X[:, :2]}, "the example inputs do not run through the model: "),
            ({"example_inputs": X.numpy()}, "the example inputs hold no tensor"),
        ],
    )
    def test_inputs_and_their_names(self, planned, tmp_path, arguments, words):
        given = {"example_inputs": X, **arguments}
        with pytest.raises(InputError) as caught:
            fxq.export_onnx(planned, tmp_path / "net.onnx", **given)
        assert str(caught.value).startswith(words)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("path", [None, 7, "net\0.onnx", "", b"net.onnx"])
    def test_what_is_no_path(self, planned, path):
        with pytest.raises(ArtifactError, match="this is no path of a file"):
            fxq.export_onnx(planned, path, X)

    @pytest.mark.parametrize("check", [3, "openvno", None])
    def test_a_runtime_that_there_is_not(self, planned, tmp_path, check):
        with pytest.raises(UnknownNameError, match="there is no such runtime to check in"):
            fxq.export_onnx(planned, tmp_path / "net.onnx", X, check=check)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("activation", "weight", "words"),
        one_of(
            3,
            [
                (
                    {},
                    {"qscheme": torch.per_tensor_affine},
                    "takes symmetric weights\n  at:       0.weight\n  got:      int8",
                ),
                (
                    {"bits": 6},
                    {},
                    "clips no integers\n  at:       input_1\n  got:      int8 [-32, 31]\n  expected: all of int8",
                ),
                ({"qscheme": torch.per_tensor_affine}, {}, "takes int8 with zero point 0\n  at:       input_1"),
            ],
        ),
    )
    def test_all_that_tensorrt_does_not_take(self, tmp_path, activation, weight, words):
        symmetric = {"dtype": torch.int8, "qscheme": torch.per_tensor_symmetric}
        qconfig = fxq.QConfig(
            fxq.MinMaxObserver.with_args(**{**symmetric, **activation}),
            fxq.MinMaxObserver.with_args(**{**symmetric, **weight}),
        )
        layer = linear()
        layer[0].weight.data += 0.05
        model = converted(layer, LINEAR_X, qconfig, backend="reference")
        with pytest.raises(ExportError) as caught:
            fxq.export_onnx(model, tmp_path / "net.onnx", LINEAR_X, target="tensorrt")
        assert str(caught.value).startswith(f"target 'tensorrt' {words}")
        fxq.export_onnx(model, tmp_path / "net.onnx", LINEAR_X)

    @pytest.mark.slow
    def test_dynamic_layers_and_integer_inputs_for_tensorrt(self, tmp_path):
        dynamic = fxq.convert(fxq.prepare(linear(), LINEAR_X, fxq.default_dynamic_qconfig))
        with pytest.raises(ExportError, match="target 'tensorrt' measures no range while it runs"):
            fxq.export_onnx(dynamic, tmp_path / "net.onnx", LINEAR_X, target="tensorrt")
        prepared = fxq.prepare(linear(), LINEAR_X, backend="onnxruntime", integer_inputs=True)
        prepared.observe(LINEAR_X)
        model = fxq.convert(prepared, to="reference")
        with pytest.raises(ExportError, match=r"takes int8 with zero point 0\n  at:       input\n  got:      uint8"):
            fxq.export_onnx(model, tmp_path / "net.onnx", LINEAR_X.to(torch.uint8), target="tensorrt")

    def test_a_model_that_is_not_converted(self, tmp_path):
        with pytest.raises(InputError, match="explicit takes a model that convert gave"):
            fxq.export_onnx(net(), tmp_path / "net.onnx", X)

    def test_places(self, planned, tmp_path):
        (tmp_path / "there.onnx").write_text("before")
        for path, words in (("there.onnx", "the file exists already"), ("no/net.onnx", "the file cannot be written")):
            with pytest.raises(ArtifactError, match=words):
                fxq.export_onnx(planned, tmp_path / path, X)
        assert (tmp_path / "there.onnx").read_text() == "before"

    def test_a_write_that_fails_leaves_what_was_there(self, planned, tmp_path, monkeypatch):
        path = tmp_path / "net.onnx"
        path.write_text("before")

        def full(*args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(writing.os, "replace", full)
        with pytest.raises(ArtifactError, match="No space left"):
            fxq.export_onnx(planned, path, X, overwrite=True)
        assert path.read_text() == "before"
        assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]

    @pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
    def test_a_missing_package(self, planned, tmp_path, monkeypatch, package):
        genuine = builtins.__import__

        def without(name: str, *args: Any, **kwargs: Any) -> Any:
            if name == package:
                raise ImportError(f"No module named {name!r}")
            return genuine(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ExportError) as caught:
            fxq.export_onnx(planned, tmp_path / "net.onnx", X, check=True)
        assert str(caught.value).startswith(f"{package} is not installed\n")
        assert str(caught.value).endswith("pip install 'fxquant[onnx]'")
        assert not list(tmp_path.iterdir())

    def test_an_operator_without_a_form(self, tmp_path):
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(6, 6)

            def forward(self, x: Tensor) -> Tensor:
                return torch.linalg.eigvals(self.fc(x)).real

        x = torch.randn(6, 6)
        with pytest.raises(ExportError) as caught:
            fxq.export_onnx(converted(Odd(), x), tmp_path / "net.onnx", x)
        assert "this operator has no ONNX form" in str(caught.value)
        assert "got:      aten.linalg_eig.default" in str(caught.value)
        assert "test_export.py" in str(caught.value)

    @pytest.mark.parametrize(
        ("value", "words"),
        [(lambda y: y.shape[0], "int 2 at result['more'][1]"), (lambda y: "text", "str 'text' at result['more'][1]")],
    )
    def test_results_that_are_no_tensors(self, value, words, tmp_path):
        class Sizes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(6, 6)

            def forward(self, x: Tensor) -> dict[str, Any]:
                y = self.fc(x)
                return {"y": y, "more": [None, value(y)]}

        x = torch.randn(2, 6)
        with pytest.raises(ExportError) as caught:
            fxq.export_onnx(converted(Sizes(), x), tmp_path / "net.onnx", x)
        assert str(caught.value).startswith(f"a model in ONNX returns tensors alone\n  got:      {words}\n")
        assert not list(tmp_path.iterdir())

    def test_shapes_that_do_not_fit(self, planned, tmp_path):
        with pytest.raises(ExportError, match=r"torch\.export cannot export this model"):
            fxq.export_onnx(planned, tmp_path / "net.onnx", X, dynamic_shapes=({7: torch.export.Dim("batch")},))
