from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import PlanError
from fxquant.measure.parity import measure_parity
from fxquant.nn import QuantizedDynamicLinear

CLOSE = 34
"""dB, for one or two roundings and a weight of 8 bits."""
FLOAT_SUMS = 1e-5
"""Sums of 16 products near 1, exact in integers and float32 in the simulation."""


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda m, x: m.fc(x), "linear"),
        (lambda m, x: F.relu(m.fc(x)), "linear_act"),
        (lambda m, x: F.hardtanh(m.fc(x), -1, 2), "linear_act"),
    ],
)
@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)], ids=str)
def test_one_unit_for_inputs_of_any_rank(plan_of, body, pattern, shape):
    plan = plan_of(body, x=torch.rand(shape), fc=nn.Linear(6, 3))
    assert [(unit.pattern, unit.inputs) for unit in plan.units] == [(pattern, ("x",))]
    assert plan.units[0].roles["weight"].name == f"fc.weight@{plan.units[0].root}"
    assert plan.rejections == ()


def test_a_linear_layer_read_twice_keeps_its_value(plan_of):
    plan = plan_of(lambda m, x: F.relu(y := m.fc(x)) * y, x=torch.rand(2, 6), fc=nn.Linear(6, 3))
    assert [unit.pattern for unit in plan.units] == ["linear", "relu", "mul"]


def test_a_batch_norm_of_features_is_folded(forms_of):
    modules = {"fc": nn.Linear(6, 5), "bn": nn.BatchNorm1d(5)}
    forms = forms_of(lambda m, x: F.relu6(m.bn(m.fc(x))), x=torch.randn(32, 6), **modules)
    assert forms.units == ["linear_bn_act"]
    assert forms.sqnr > CLOSE
    assert forms_of(lambda m, x: m.bn(m.fc(x)), x=torch.randn(32, 6), **modules).units == ["linear_bn"]


def test_a_batch_norm_of_positions_is_not(forms_of):
    """[N, L, F] is [N, C, L] to a BatchNorm1d: here its channels are the positions."""
    forms = forms_of(lambda m, x: m.bn(m.fc(x)), x=torch.randn(8, 3, 6), fc=nn.Linear(6, 5), bn=nn.BatchNorm1d(3))
    assert forms.units == ["linear", "bn"]
    assert forms.sqnr > CLOSE


class Net(nn.Module):
    """Linear layers between floats, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.first, self.last = nn.Conv1d(4, 4, 1), nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(self.conv(x))).softmax(-1))


X = torch.randn(3, 4, 12, generator=torch.Generator().manual_seed(0))
STATIC_CONV = (
    fxq.QConfigMapping().set_global(fxq.default_dynamic_qconfig).set_object_type(nn.Conv1d, fxq.get_default_qconfig())
)


@torch.no_grad()
def test_inputs_of_linear_layers_can_be_measured_in_each_call():
    """No calibration; every call has its own grid; the forms agree, and all units keep the contract."""
    model = Net().eval()
    prepared = fxq.prepare(model, X, fxq.default_dynamic_qconfig)
    assert [unit.pattern for unit in prepared.plan.units] == ["dynamic_linear", "dynamic_linear"]
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    assert isinstance(int8.first, QuantizedDynamicLinear)
    for x in (X, 100 * X[:1]):
        expected = model(x)
        assert 10 * torch.log10(expected.square().mean() / (int8(x) - expected).square().mean()) > CLOSE
        assert torch.equal(fxq.convert(prepared, to="reference")(x), simulated(x))
        parity = measure_parity(int8, simulated, (x,))
        assert [(row.pattern, row.gives, row.native_equal) for row in parity] == [("dynamic_linear", "float", 1.0)] * 2
        assert parity.breaches == ()


def test_what_cannot_be_measured_in_each_call_says_so():
    prepared = fxq.prepare(Net().eval(), X, fxq.default_dynamic_qconfig)
    why = "its QConfig measures ranges at run time (is_dynamic=True), which linear layers alone do"
    rows = [(row.node, row.reason, row.excused) for row in prepared.coverage().float_rows if row.node != "softmax"]
    assert rows == [("conv", why, False), ("gelu", why, True)]
    with pytest.raises(PlanError, match=r"conv \(Conv1d\): its QConfig measures ranges at run time"):
        fxq.prepare(Net().eval(), X, fxq.default_dynamic_qconfig, strict=True)


@torch.no_grad()
def test_measured_and_calibrated_ranges_meet():
    """What a calibrated unit gives is read by a layer that measures: rounded once by each, in every form."""
    prepared = fxq.prepare(Net().eval(), X, STATIC_CONV)
    assert [unit.pattern for unit in prepared.plan.units] == ["conv", "dynamic_linear", "dynamic_linear"]
    assert ["y" in unit.roles for unit in prepared.plan.units] == [False, False, False]
    prepared.calibrate([X], progress=False)
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    assert torch.equal(fxq.convert(prepared, to="reference")(X), simulated(X))
    torch.testing.assert_close(int8(X), simulated(X), rtol=0, atol=FLOAT_SUMS)
    assert measure_parity(int8, simulated, (X,)).breaches == ()


def test_a_light_unit_is_not_kept_for_a_layer_that_reads_floats():
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Linear, fxq.default_dynamic_qconfig)
    prepared = fxq.prepare(nn.Sequential(nn.Hardswish(), nn.Linear(6, 3)).eval(), torch.rand(2, 6), mapping)
    assert [unit.pattern for unit in prepared.plan.units] == ["dynamic_linear"]
    (row,) = prepared.coverage().float_rows
    assert row.excused
    assert prepared.coverage().int8_macs == 1.0


def test_weights_that_int8_does_not_take_are_named():
    grouped = fxq.PerChannelMinMaxObserver.with_args(scheme=fxq.QScheme(symmetric=True, axis=0, group_size=3))
    qconfig = fxq.QConfig(fxq.MinMaxObserver.with_args(is_dynamic=True), grouped)
    with pytest.raises(PlanError, match="weights with one scale per group have no integer operator"):
        fxq.prepare(nn.Sequential(nn.Linear(6, 3)).eval(), torch.rand(2, 6), qconfig)
    reference = fxq.prepare(nn.Sequential(nn.Linear(6, 3)).eval(), torch.rand(2, 6), qconfig, backend="reference")
    x = torch.rand(2, 6)
    assert torch.equal(fxq.convert(reference, to="fake_quant")(x), fxq.convert(reference, to="reference")(x))


WEIGHTS = (
    fxq.QScheme(bits=4, symmetric=True, axis=0, group_size=4),
    fxq.QScheme(bits=8, symmetric=True, axis=0),
    fxq.QScheme(bits=12, signed=False, axis=-2),
)


@torch.no_grad()
@pytest.mark.parametrize("scheme", WEIGHTS, ids=str)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_weight_alone_may_be_on_any_grid(backend, scheme):
    """Nothing is multiplied in integers, so nothing is refused, and all forms give the same bits."""
    qconfig = fxq.QConfig(fxq.PlaceholderObserver, fxq.PerChannelMinMaxObserver.with_args(scheme=scheme))
    model = Net().eval()
    prepared = fxq.prepare(model, X, fxq.QConfigMapping().set_object_type(nn.Linear, qconfig), backend=backend)
    assert [unit.pattern for unit in prepared.plan.units] == ["weight_only_linear", "weight_only_linear"]
    stored, simulated = fxq.convert(prepared, to="reference"), fxq.convert(prepared, to="fake_quant")
    assert stored.first.weight.dtype == scheme.dtype
    assert not torch.equal(stored(X), model(X))
    assert torch.equal(stored(X), simulated(X))
    if backend == "cpu":
        int8 = fxq.convert(prepared, check=X)
        assert int8.first.weight.dtype == scheme.dtype
        assert torch.equal(int8(X), simulated(X))
        assert int8.parity.rows == ()


def test_products_with_a_stored_weight_are_no_int8(capsys):
    qconfig = fxq.QConfig(fxq.PlaceholderObserver, fxq.default_dynamic_qconfig.weight)
    mapping = fxq.QConfigMapping().set_global(fxq.default_dynamic_qconfig).set_module_name("last", qconfig)
    coverage = fxq.prepare(Net().eval(), X, mapping).coverage()
    assert [(row.node, row.fate) for row in coverage if row.fate != "float"] == [("first", "int8"), ("last", "weight")]
    assert 0 < coverage.int8_macs < 1
    assert "weight_only_linear        1  " in str(coverage)
    assert "\n1 units become int8, 1 keep their weight in integers, 3 operators stay float; " in str(coverage)
