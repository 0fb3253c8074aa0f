"""What is planned for ONNX Runtime: only what its optimizer makes integer kernels of."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from tests.exporting.onnx.test_export import SEVEN_BITS


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.two(F.relu(self.one(x))) + x)


X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
SYMMETRIC = fxq.QConfig(
    fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"), fxq.get_default_qconfig().weight
)


MOST_LOST = 0.5
"""dB, as ``benchmarks/exports.py`` allows: on so few values, roundings that go the other way decide tenths."""


def units(model: nn.Module, qconfig=None, x: torch.Tensor = X) -> list[tuple[str, bool]]:
    """Pattern of each unit, and whether its result has qparams."""
    prepared = fxq.prepare(model.eval(), x, qconfig, backend="onnxruntime")
    return [(unit.pattern, "y" in unit.roles) for unit in prepared.plan.units]


def test_every_row_names_patterns_that_exist():
    known = {pattern.name for pattern in DEFAULT_PATTERNS}
    for backend in (fxq.ONNXRUNTIME, fxq.OPENVINO, fxq.TENSORRT):
        named = [name for rule in backend.rules for name in rule.patterns]
        assert set(named) <= known
        assert len(named) == len(set(named))
        assert all(rule.patterns for rule in backend.rules)


def test_a_residual_is_a_sum_of_its_own_and_a_returned_sum_stays_float():
    model = nn.Sequential(Residual(), nn.Conv2d(4, 2, 1))
    # The last convolution is read by the user alone: with a float result it would run in float.
    assert units(model) == [("conv_act", True), ("conv", True), ("add_act", True), ("conv", True)]


def test_a_clamp_behind_symmetric_qparams_stays_float():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU6(), nn.Conv2d(4, 4, 1))
    assert units(model) == [("conv_act", True), ("conv", True)]
    assert units(model, SYMMETRIC) == [("conv", True), ("conv", True)]


@pytest.mark.parametrize("function", [nn.GELU(), nn.Tanh()], ids=lambda f: type(f).__name__)
def test_functions_stay_float_between_two_qparams(function):
    assert units(nn.Sequential(nn.Conv2d(4, 4, 1), function, nn.Conv2d(4, 4, 1))) == [("conv", True), ("conv", True)]


def test_a_linear_layer_may_give_floats():
    assert units(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))) == [
        ("linear_act", True),
        ("linear", False),
    ]


def test_there_is_no_int8_form_here():
    prepared = fxq.prepare(nn.Linear(4, 4).eval(), torch.randn(2, 4), backend="onnxruntime")
    with pytest.raises(fxq.FxQuantError, match="backend 'onnxruntime' has no integer operators"):
        fxq.convert(prepared)


class Excited(nn.Module):
    """An inverted residual with squeeze and excitation: a function behind each convolution, and a gate."""

    def __init__(self, function: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.expand, self.depthwise = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.reduce, self.restore, self.project = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Conv2d(16, 4, 1)
        self.function, self.gate = function, gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(self.depthwise(self.function(self.expand(x))))
        scale = self.gate(self.restore(self.function(self.reduce(F.adaptive_avg_pool2d(y, 1)))))
        return self.project(scale * y) + x


def excited(function: nn.Module, gate: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Excited(function, gate), Excited(function, gate), nn.Conv2d(4, 4, 1)).eval()


GATES = [(nn.SiLU(), nn.Sigmoid()), (nn.Hardswish(), nn.Hardsigmoid())]


@pytest.mark.parametrize(
    ("function", "gate"),
    [pytest.param(*GATES[0], id="SiLU", marks=pytest.mark.slow), pytest.param(*GATES[1], id="hardswish")],
)
def test_gates_and_what_they_multiply_are_integers(function, gate, tmp_path):
    model = excited(function, gate)
    prepared = fxq.calibrate(fxq.prepare(model, X, SEVEN_BITS, backend="onnxruntime"), [X], progress=False)
    report = fxq.export_onnx(fxq.convert(prepared, to="reference"), tmp_path / "net.onnx", X, check=True)
    assert not report.breaches
    assert report.integer_kernels == len(report.rows) - 2  # the input is quantized, the output dequantized
    kernels = {kind: count for kind, count in report.kernels.items() if kind != "Transpose"}
    # Of each block: 3 functions and a gate; 3 products of functions and one with the gate; a sum.
    gates = {"QLinearSigmoid": 8, "QLinearAdd": 2} if isinstance(gate, nn.Sigmoid) else {"QLinearAdd": 10}
    wanted = {"QLinearConv": 11, "QLinearMul": 8, "QLinearGlobalAveragePool": 2, **gates}
    assert kernels == wanted | {"QuantizeLinear": 1, "DequantizeLinear": 1}


class Batches(CalibrationDataReader):
    """What the runtime's own quantizer calibrates on."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> dict[str, object] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"x": batch.numpy()}


def in_onnxruntime(path: Path, x: torch.Tensor) -> torch.Tensor:
    """What a file gives with the runtime's optimizations off: no processor's kernels for integers take part."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "gate"),
    [pytest.param(*GATES[0], id="SiLU"), pytest.param(*GATES[1], id="hardswish", marks=pytest.mark.slow)],
)
def test_gates_are_as_near_to_float_as_those_of_the_runtimes_own_quantizer(function, gate, tmp_path):
    """On the same ranges, those that were seen."""
    model, generator = excited(function, gate), torch.Generator().manual_seed(1)
    batches, held_out = ([torch.randn(4, 4, 8, 8, generator=generator) for _ in range(4)] for _ in range(2))
    made, theirs = tmp_path / "float.onnx", tmp_path / "theirs.onnx"
    torch.onnx.export(model, (batches[0],), made, input_names=["x"], dynamo=True, verbose=False)
    quantize_static(made, theirs, Batches(batches), per_channel=True, activation_type=QuantType.QUInt8)
    observer = fxq.MinMaxObserver.with_args(dtype=torch.uint8)
    config = fxq.QConfig(observer, fxq.get_default_qconfig().weight, correct_bias=True)
    prepared = fxq.calibrate(fxq.prepare(model, X, config, backend="onnxruntime"), batches, progress=False)
    ours = fxq.convert(prepared, to="reference")
    with torch.no_grad():
        exact, got = (torch.cat([each(batch) for batch in held_out]) for each in (model, ours))
    peer = torch.cat([in_onnxruntime(theirs, batch) for batch in held_out])
    assert sqnr(exact, got) > sqnr(exact, peer) - MOST_LOST
