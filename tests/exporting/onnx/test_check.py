"""The check: each unit in ONNX Runtime on fxquant's inputs, what it became there, and why the rest did not."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import ExportError, FxQuantWarning
from fxquant.exporting.onnx import check, runtimes
from tests.exporting.onnx.test_export import TOKENS, Attention, X, converted, net
from tests.sampling import one_of

POOL = ("GlobalAveragePool",)
FAR = ("kernel", "why", "float")
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> fxq.OnnxReport:
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    return fxq.export_onnx(converted(net()), path, X, check=True)


def test_every_unit_that_is_planned_for_it_becomes_an_integer_kernel(report):
    kernels = {kind: count for kind, count in report.kernels.items() if kind.startswith("QLinear") or "Gemm" in kind}
    assert kernels == {"QLinearConv": 3, "QLinearAdd": 1, "QLinearGlobalAveragePool": 1, "QGemm": 1}
    assert not [kind for kind in report.kernels if "Conv" in kind and kind != "QLinearConv"]
    assert [row.reason for row in report.rows if row.reason] == []
    assert report.integer_kernels == 6
    assert [row.operators for row in report.rows] == [(), ("Conv",), ("Conv",), ("Add",), ("Conv",), POOL, ("Gemm",)]


def test_units_agree(report):
    assert report.breaches == ()
    for row in report.rows:
        assert row.unfused_beyond_ties == 0
        assert row.unfused_different <= max(1, 1e-3 * row.values)
        assert row.fused_steps <= 1
        assert row.fused_different <= max(1, 1e-2 * row.values)
    assert report.rows[0].kernels == ("QuantizeLinear",)
    assert report.rows[-1].unrounded == ""  # the result of the model is float
    assert report.rows[-1].fused_steps < 1e-5


def test_it_is_read_as_a_table(report):
    text = str(report)
    assert text.splitlines()[0].split() == ["unit", "in", "the", "file", "unfused", "steps", "fused", "steps", *FAR]
    assert "6 of 6 units run on integers in ONNX Runtime: " in text
    assert "opset 21" in text
    assert "<table>" in report._repr_html_()


def test_what_only_quantizes_is_no_unit_on_integers():
    rows = [
        fxq.OnnxRow(name, operators, name, ("QuantizeLinear",), True, 100, 0, 0, 0.0, 0, 0.0)
        for name, operators in (("x", ()), ("moved", ("Transpose",)))
    ]
    report = fxq.OnnxReport(tuple(rows))
    assert report.integer_kernels == 1
    assert "1 of 1 units run on integers" in str(report)


def test_a_plan_for_the_cpu_has_units_in_float_and_the_reasons(tmp_path):
    report = fxq.export_onnx(converted(net(), backend="cpu"), tmp_path / "net.onnx", X, check=True)
    reasons = [row.reason for row in report.rows if row.reason]
    assert len(reasons) == 2
    assert reasons[0].startswith("its sum is added before it is quantized; backend='onnxruntime'")
    assert reasons[1] == "its result is float"
    assert report.breaches == ()


class Float(nn.Module):
    """A convolution that gives floats, and one with a function behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


@pytest.mark.slow
def test_reasons_of_forms_that_stay_float(tmp_path):
    model = converted(Float(), backend="openvino")
    report = fxq.export_onnx(model, tmp_path / "net.onnx", X, target="onnxruntime", check=True)
    reasons = [row.reason for row in report.rows if row.operators]
    assert reasons == ["a function stands between the convolution and its quantize", "its result is float"]
    planned = converted(Float())
    report = fxq.export_onnx(planned, tmp_path / "planned.onnx", X, check=True)
    reasons = [row.reason for row in report.rows if row.operators]
    assert reasons[:3] == ["", "Tanh: no integer kernel", ""]


@pytest.mark.parametrize(
    ("bias", "relu", "reason"),
    one_of(
        3,
        [
            (
                True,
                False,
                "its input is quantized with a range of each call, and the runtime's kernel for that takes no bias",
            ),
            (
                True,
                True,
                "its input is quantized with a range of each call, and the runtime's kernel for that takes no bias",
            ),
            (False, False, ""),
            (False, True, ""),
        ],
    ),
)
def test_layers_whose_ranges_are_measured_in_each_call(tmp_path, bias, relu, reason):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8, bias=bias), *[nn.ReLU()] * relu).eval()
    x = torch.randn(4, 3)
    dynamic = fxq.convert(fxq.prepare(model, x, fxq.default_dynamic_qconfig), to="reference")
    report = fxq.export_onnx(dynamic, tmp_path / "net.onnx", x, check=True)
    assert [(row.is_integer, row.reason) for row in report.rows] == [(not reason, reason)]
    assert report.breaches == ()


@pytest.mark.slow
def test_attention(tmp_path):
    torch.manual_seed(0)
    report = fxq.export_onnx(converted(Attention(), TOKENS), tmp_path / "net.onnx", TOKENS, check=True)
    assert report.breaches == ()
    assert report.kernels["QLinearMatMul"] + report.kernels["MatMulIntegerToFloat"] >= 2
    assert report.kernels["QGemm"] >= 5
    assert not report.kernels["Gemm"]


@pytest.mark.parametrize("shape", [pytest.param((4, 64), marks=pytest.mark.slow), (2, 3, 64)], ids=len)
@pytest.mark.parametrize("scheme", [{"group_size": 32}, {}], ids=["blocks", "channels"])
def test_weights_of_4_bits_beside_floats_have_a_kernel(shape, scheme, tmp_path):
    """Whatever the rank of the input: torch.onnx makes Gemm of matrices, which the runtime would run in float."""
    observer = fxq.PerChannelMinMaxObserver.with_args(scheme=fxq.QScheme(bits=4, symmetric=True, axis=0, **scheme))
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8, bias=False)), torch.randn(shape)
    planned = converted(model, x, fxq.QConfig(fxq.PlaceholderObserver, observer))
    report = fxq.export_onnx(planned, tmp_path / "net.onnx", x, check=True)
    assert report.breaches == ()
    assert report.kernels["MatMulNBits"] == 2
    assert (report.kernels["Gemm"], report.kernels["FusedGemm"], report.kernels["MatMul"]) == (0, 0, 0)


def test_a_loop_reads_what_is_outside_of_it(tmp_path, logged):
    """Sums of rows are a loop in ONNX, whose graph reads the table and the places where sums begin."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.fc = nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 3)

        def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
            return self.fc(torch.relu(self.bags(ids, starts)))

    torch.manual_seed(0)
    inputs = TOKENS.flatten(), torch.tensor([0, 4])
    with logged.at_level(logging.DEBUG):
        report = fxq.export_onnx(converted(Bags(), inputs), tmp_path / "net.onnx", inputs, check=True)
    assert report.breaches == ()
    assert report.kernels["QGemm"] == 1
    assert not [record for record in logged.records if record.name.startswith("onnx")]


@pytest.mark.slow
def test_a_file_that_gives_something_else_is_an_error(tmp_path, monkeypatch):
    genuine = runtimes.session

    def wrong(model: Any, **arguments: Any) -> Any:
        runner = genuine(model, **arguments)

        class Runner:
            def run(self, names: Any, feeds: Any) -> Any:
                first, *rest = runner.run(names, feeds)
                return [first ^ 8 if first.dtype.kind in "ui" else first, *rest]

        return Runner()

    monkeypatch.setattr(runtimes, "session", wrong)
    with pytest.raises(ExportError) as caught:
        fxq.export_onnx(converted(net()), tmp_path / "net.onnx", X, check=True)
    message = str(caught.value)
    assert message.startswith("the exported model gives something else\n  at:       x\n  got:      100 % of values")
    assert "expected: equal away from ties" in message


def test_a_kernel_that_is_off_by_more_than_one_step_is_warned_of(report):
    row = fxq.OnnxRow("add", ("Add",), "add", ("QLinearAdd",), True, 100, 0, 0, 0.0, 3, 2.0)
    with pytest.warns(FxQuantWarning, match="differ by more than one step") as caught:
        check.judged(fxq.OnnxReport((row,), runtime="ONNX Runtime"))
    assert "on processors without VNNI" in str(caught[0].message)
    assert "weight.with_args(reduce_range=True)" in str(caught[0].message)


@pytest.mark.parametrize(
    ("found", "wanted", "distance", "expected"),
    [
        ([1, 2], [1, 2], [0.0, 0.0], (0, 0, 0.0)),
        ([1, 3], [1, 2], [0.4, 0.0], (1, 0, 1.0)),  # a tie
        ([1, 3], [1, 2], [0.0, 0.4], (1, 1, 1.0)),
        ([9, 2], [1, 2], None, (1, 1, 8.0)),
        ([1.0, 2.0], [1.0, 2.0 + 1e-7], None, (0, 0, 0.0)),
        ([1.0, 1.0], [1.0, 2.0], None, (1, 1, 0.5)),
        ([-INF, 3.0], [-INF, 2.0], None, (1, 1, 0.5)),  # the infinity hides no other value
        ([NAN, 3.0], [NAN, 2.0], None, (1, 1, 0.5)),
        ([-INF, NAN, 2.0], [-INF, NAN, 2.0], None, (0, 0, 0.0)),
        ([INF, 2.0], [-INF, 2.0], None, (1, 1, INF)),
        ([1.0, 2.0], [NAN, 2.0], None, (1, 1, INF)),
        ([NAN, 2.0], [1.0, 2.0], None, (1, 1, INF)),
        ([-INF, NAN], [-INF, 1.0], None, (1, 1, INF)),
        ([INF], [INF], None, (0, 0, 0.0)),
        ([], [], None, (0, 0, 0.0)),
    ],
)
def test_what_counts_as_different(found, wanted, distance, expected):
    found, wanted = torch.tensor(found), torch.tensor(wanted)
    answer = check.compared(found, wanted, None if distance is None else torch.tensor(distance))
    assert answer == pytest.approx(expected, abs=1e-6)


class TestDtypes:
    @pytest.mark.slow
    def test_half(self, tmp_path):
        x = X.half()
        report = fxq.export_onnx(converted(net().half(), x), tmp_path / "net.onnx", x, check=True)
        assert report.breaches == ()
        assert max(row.unfused_steps for row in report.rows) <= 1

    @pytest.mark.slow
    def test_bfloat16_is_refused_before_a_file_is_written(self, tmp_path):
        x = X.bfloat16()
        model = converted(net().bfloat16(), x)
        with pytest.raises(ExportError, match="the check cannot hand values of bfloat16 to a runtime"):
            fxq.export_onnx(model, tmp_path / "net.onnx", x, check=True)
        assert not list(tmp_path.iterdir())
        fxq.export_onnx(model, tmp_path / "net.onnx", x)

    @pytest.mark.slow
    def test_float64_has_no_kernels(self, tmp_path):
        with pytest.raises(ExportError, match="ONNX Runtime cannot run this unit of the file") as caught:
            fxq.export_onnx(converted(net().double(), X.double()), tmp_path / "net.onnx", X.double(), check=True)
        assert "NOT_IMPLEMENTED" in str(caught.value)

    def test_an_empty_batch(self, tmp_path):
        report = fxq.export_onnx(converted(net()), tmp_path / "net.onnx", X[:0], check=True)
        assert {row.values for row in report.rows} == {0}
        assert report.breaches == ()


class Choosing(nn.Module):
    """Gives values, indices, a truth value and a lone number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(self.fc(x))
        values, indices = torch.topk(y, 3)
        return values, indices, y > 0.5, y.max()


@pytest.mark.slow
def test_indices_are_not_judged_as_quantized_values(tmp_path, monkeypatch):
    x = torch.randn(4, 8)
    model = converted(Choosing(), x)
    report = fxq.export_onnx(model, tmp_path / "net.onnx", x, check=True)
    assert report.breaches == ()
    genuine = runtimes.session

    def other_indices(given: Any, **arguments: Any) -> Any:
        runner = genuine(given, **arguments)

        class Runner:
            def run(self, names: Any, feeds: Any) -> Any:
                return [
                    found[..., ::-1].copy() if found.dtype == "int64" else found for found in runner.run(names, feeds)
                ]

        return Runner()

    monkeypatch.setattr(runtimes, "session", other_indices)
    report = fxq.export_onnx(model, tmp_path / "net.onnx", x, check=True, overwrite=True)
    (row,) = [row for row in report.rows if row.unfused_different]
    assert (row.unfused_beyond_ties, row.unfused_steps, row.fused_steps) == (0, 0.0, 0.0)


def test_openvino(tmp_path):
    pytest.importorskip("openvino")
    model = converted(net(), backend="openvino")
    report = fxq.export_onnx(model, tmp_path / "net.onnx", X, target="openvino", check="openvino")
    assert report.breaches == ()
    assert report.integer_kernels >= 4
    assert report.kernels["Convolution u8"] == 3
    assert "units run on integers in OpenVINO: " in str(report)
    assert "in ONNX Runtime with its optimizations off, and in OpenVINO" in str(report)
    assert max(row.fused_steps for row in report.rows) <= 1


def test_attention_in_openvino(tmp_path):
    pytest.importorskip("openvino")
    model = converted(Attention(), TOKENS, backend="openvino")
    report = fxq.export_onnx(model, tmp_path / "net.onnx", TOKENS, target="openvino", check="openvino")
    floats = [row for row in report.rows if row.operators and not row.is_integer]
    assert floats
    assert all(row.reason.endswith(" f32: no integer kernel") for row in floats)


def test_openvino_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ExportError, match="openvino is not installed") as caught:
        fxq.export_onnx(converted(net()), tmp_path / "net.onnx", X, check="openvino")
    assert str(caught.value).endswith("pip install openvino")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kinds", "computing", "on_integers"),
    [
        (["Subgraph f32", "Reorder u8", "Convolution u8"], ("Convolution u8",), True),
        (["Convolution f32", "Reorder f32"], ("Convolution f32",), False),
        (["MatMul i8", "MatMul f32"], ("MatMul i8", "MatMul f32"), True),
        (["MVN u8", "FakeQuantize f32"], ("MVN u8", "FakeQuantize f32"), False),
        (["Reshape u8", "Transpose u8"], ("Reshape u8", "Transpose u8"), True),
    ],
)
def test_layers_of_openvino(kinds, computing, on_integers):
    assert runtimes.layers_computing(kinds) == computing
    assert runtimes.layers_on_integers(kinds) == on_integers
