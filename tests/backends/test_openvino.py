"""What is planned for OpenVINO: fused functions, sums behind convolutions, one set of qparams for what is joined."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.exporting.onnx.runtimes import layers
from tests.backends.test_onnxruntime import SYMMETRIC, Residual, X


def prepared(model: nn.Module, qconfig=None, x: torch.Tensor = X) -> fxq.Quantizer:
    return fxq.prepare(model.eval(), x, qconfig, backend="openvino")


def units(model: nn.Module, qconfig=None) -> list[tuple[str, bool]]:
    return [(unit.pattern, "y" in unit.roles) for unit in prepared(model, qconfig).plan.units]


def test_a_convolution_has_qparams_before_it_adds():
    model = nn.Sequential(Residual(), nn.Conv2d(4, 2, 1))
    assert units(model) == [("conv_act", True), ("conv", True), ("add_act", True), ("conv", False)]


class Sums(nn.Module):
    """Adds what comes of a linear layer, what a convolution gives behind its batch norm, and what a function gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.norm(self.conv(x))
        x = x + self.linear(x)
        return self.last(x + x.sigmoid())


def test_sums_that_no_convolution_takes_part_in_stay_float():
    planned = prepared(Sums()).plan
    assert [unit.pattern for unit in planned.units] == ["conv_bn", "add", "linear", "conv"]
    reasons = [refusal.reason for refusal in planned.refusals if refusal.node.startswith("add")]
    assert len(reasons) == 2
    assert all("sums run in float unless they are behind a convolution" in reason for reason in reasons)


class Excited(nn.Module):
    """Squeeze and excitation: a function of a convolution, pooled, and multiplied with what comes of that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(self.conv(x))
        x = x * nn.functional.hardsigmoid(self.gate(nn.functional.adaptive_avg_pool2d(x, 1)))
        return self.last(x)


class Gated(nn.Module):
    """A product that no convolution has a part in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(x * x.sigmoid())


def test_what_is_pooled_and_multiplied_is_quantized_once():
    planned = prepared(Excited()).plan
    assert [unit.pattern for unit in planned.units] == ["conv", "adaptive_avg_pool2d", "conv", "mul", "conv"]
    hardswish = next(str(ref) for ref in planned.policies if str(ref).startswith("hardswish"))
    readers = [unit.pattern for unit in planned.units if hardswish in map(str, unit.roles.values())]
    assert readers == ["adaptive_avg_pool2d", "mul"]
    (reason,) = [refusal.reason for refusal in prepared(Gated()).plan.refusals if refusal.pattern == "mul"]
    assert "products run on floats unless a convolution gives a factor" in reason


def test_residuals_are_added_by_convolutions_on_integers(tmp_path):
    """Both summands are read by others, too: without qparams of its own the convolution would write floats."""
    openvino = pytest.importorskip("openvino")
    model = nn.Sequential(Residual(), Residual(), nn.Conv2d(4, 2, 1))
    converted = fxq.convert(prepared(model).calibrate([X], progress=False), to="reference")
    fxq.export_onnx(converted, tmp_path / "net.onnx", X, target="openvino")
    found = layers(openvino.Core().compile_model(str(tmp_path / "net.onnx"), "CPU", {"INFERENCE_NUM_THREADS": 1}))
    assert found["Convolution u8"] == 5
    assert "Eltwise u8" not in found
    assert "Subgraph u8" not in found


def test_no_qparams_stand_between_a_convolution_and_its_function():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Hardswish(), nn.Conv2d(4, 4, 1))
    assert units(model) == [("conv", False), ("conv", False)]
    planned = prepared(model).plan
    assert sorted(str(ref) for ref in planned.policies if ref.kind == "activation") == ["_1", "input_1"]


def test_int8_needs_zero_point_0():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    assert units(model, SYMMETRIC) == [("conv", True), ("conv", False)]
    affine = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.int8), SYMMETRIC.weight)
    with pytest.raises(fxq.FxQuantError, match="its integers must be int8 with zero point 0"):
        prepared(model, affine)


class Fork(nn.Module):
    """Values of unequal ranges, which are joined, and read beside that."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.last = nn.Conv2d(12, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x) * 1
        return self.last(torch.cat([a, self.c(a), b], 1))


def test_what_is_joined_has_the_qparams_of_the_result():
    torch.manual_seed(0)
    model = Fork()
    model.c.weight.data *= 6
    for backend, count in (("openvino", 1), ("onnxruntime", 2)):
        done = fxq.prepare(model.eval(), X, backend=backend).calibrate([X], progress=False)
        plan = fxq.convert(done, to="reference").quant_plan
        unit = next(unit for unit in plan.units if unit.pattern == "cat")
        assert len({float(plan.qparams[ref].scale) for ref in unit.roles.values()}) == count


class JoinsMultiples(nn.Module):
    """Joins a layer's result with a third of another's, which a layer reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.both, self.first = (nn.Conv2d(n, 4, 1) for n in (3, 3, 8, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one = self.one(x)
        return self.both(torch.cat([one / 3.0, self.two(x)], 1)), self.first(one)


@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
def test_multiples_are_joined_on_the_qparams_of_the_result(backend):
    torch.manual_seed(0)
    x, model = torch.randn(2, 3, 8, 8), JoinsMultiples().eval()
    prepared = fxq.calibrate(fxq.prepare(model, x, backend=backend), [x], progress=False)
    converted = fxq.convert(prepared, to="reference")
    qparams = {ref.name: each for ref, each in converted.quant_plan.qparams.items() if ref.kind == "activation"}
    (multiple,) = [name for name in qparams if name in ("truediv", "mul", "div")]
    for name in (multiple, "two"):
        assert qparams[name].same_qparams(qparams["cat"])
    assert torch.allclose(qparams["one"].scale, qparams["cat"].scale * 3.0)
    for got, wanted in zip(converted(x), model(x), strict=True):
        assert (got - wanted).norm() < 0.04 * wanted.norm()
