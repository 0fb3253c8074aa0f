from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph

import fxquant as fxq
from fxquant.backends.base import BACKENDS
from fxquant.backends.cpu import CPU
from fxquant.errors import PlanError
from fxquant.kernels.matmul.matmul import MOST_PRODUCTS
from fxquant.measure.parity import measure_parity
from fxquant.nn import QuantizedDynamicLinear, QuantizedEmbedding, QuantizedEmbeddingBag, QuantizedWeightOnlyLinear
from fxquant.patterns.linear import two_factors
from fxquant.plan.spec import Observed
from fxquant.runtime.program_engine import engine_of

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
    assert plan.refusals == ()


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


@torch.no_grad()
def test_each_token_can_have_a_range_of_its_own():
    """As above; a token that is much larger than the others costs these nothing."""
    model = Net().eval()
    prepared = fxq.prepare(model, X, fxq.default_per_token_qconfig)
    assert [unit.pattern for unit in prepared.plan.units] == ["per_token_linear", "per_token_linear"]
    (line,) = [line for line in str(prepared).splitlines() if line.startswith("per_token_linear")]
    assert line.split()[:7] == ["per_token_linear", "2", "85.0", "%", "int8", "→", "float"]
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    loud = X.clone()
    loud[0, 1] *= 1000
    for x in (X, loud):
        assert torch.equal(fxq.convert(prepared, to="reference")(x), simulated(x))
        parity = measure_parity(int8, simulated, (x,))
        found = [(row.pattern, row.gives, row.native_equal) for row in parity]
        assert found == [("per_token_linear", "float", 1.0)] * 2
        assert parity.breaches == ()
    rows = torch.randn(6, 12) * torch.tensor([1.0, 1.0, 1000.0, 1.0, 1e-3, 0.0]).unsqueeze(1)
    layer = int8.get_submodule("first")
    assert torch.equal(layer(rows), torch.cat([layer(row[None]) for row in rows]))
    noise = (layer(rows) - model.first(rows)).square().sum(1) / model.first(rows).square().sum(1)
    assert float(noise.max()) < 10 ** (-CLOSE / 10)


def test_ranges_of_tokens_are_for_linear_layers():
    model = nn.Sequential(nn.LSTM(6, 4, batch_first=True)).eval()
    with pytest.raises(PlanError) as caught:
        fxq.prepare(model, torch.rand(2, 3, 6), fxq.default_per_token_qconfig)
    assert (
        "0: its QConfig asks for a range for each token, which linear layers alone have; default_dynamic_qconfig "
        "measures the whole input"
    ) in str(caught.value)
    linear = nn.Sequential(nn.Linear(12, 4)).eval()
    with pytest.raises(PlanError, match="0: backend 'onnxruntime' has no operator for it"):
        fxq.prepare(linear, X, fxq.default_per_token_qconfig, backend="onnxruntime")


ACTIVATIONS = (nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.25, 0.125))


@torch.no_grad()
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: type(activation).__name__)
@pytest.mark.parametrize("per", ["dynamic", "per_token"])
def test_layers_that_measure_their_input_clamp_their_result(per, activation):
    """A unit with the activation behind it; every form computes it, and int8 as the layer with a clamp behind it."""
    torch.manual_seed(0)
    qconfig = fxq.default_dynamic_qconfig if per == "dynamic" else fxq.default_per_token_qconfig
    model = nn.Sequential(nn.Linear(12, 16), activation, nn.Linear(16, 5)).eval()
    prepared = fxq.prepare(model, X, qconfig)
    assert [unit.pattern for unit in prepared.plan.units] == [f"{per}_linear_act", f"{per}_linear"]
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    alone = fxq.convert(fxq.prepare(model[:1], X, qconfig))
    assert torch.equal(int8.get_submodule("0")(X), activation(alone(X)))
    for x in (X, 30 * X[:1]):
        reference = fxq.convert(prepared, to="reference")
        assert torch.equal(reference(x), simulated(x))
        assert torch.equal(fxq.explicit(int8)(x), reference(x))
        assert measure_parity(int8, simulated, (x,)).breaches == ()
        assert [torch.equal(int8(x), fxq.convert(prepared, engine="graph")(x)) for _ in range(3)] == [True] * 3
    (plan, *_) = engine_of(int8).plans
    assert plan.only_program is not None


class ReadTwice(nn.Module):
    """A linear layer whose result a sum reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return F.relu(y) + y


def test_a_result_that_others_read_is_not_clamped():
    plan = fxq.prepare(ReadTwice().eval(), X, fxq.default_dynamic_qconfig).plan
    assert [unit.pattern for unit in plan.units] == ["dynamic_linear"]


@torch.no_grad()
def test_a_back_end_without_the_activation_takes_the_layer_alone():
    rules = [rule for rule in CPU.rules if "dynamic_linear_act" not in rule.patterns]
    (both,) = [rule for rule in CPU.rules if "dynamic_linear_act" in rule.patterns]
    fxq.register_backend(fxq.Backend("layers alone", (*rules, replace(both, patterns=("dynamic_linear",)))))
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU()).eval()
    try:
        prepared = fxq.prepare(model, X, fxq.default_dynamic_qconfig, backend="layers alone")
    finally:
        BACKENDS.remove("layers alone")
    assert [unit.pattern for unit in prepared.plan.units] == ["dynamic_linear"]
    expected = fxq.convert(fxq.prepare(model, X, fxq.default_dynamic_qconfig))
    assert prepared.backend.name == "layers alone"
    assert torch.equal(fxq.convert(prepared)(X), expected(X))


@torch.no_grad()
@pytest.mark.parametrize("qconfig", [fxq.default_dynamic_qconfig, fxq.get_default_qconfig()], ids=["dynamic", "static"])
def test_bounds_without_order(qconfig):
    """Of bounds that cross the upper one counts, as torch has it; NaN as a bound makes every value NaN."""
    for bounds, unit in (((2.0, -1.0), 2), ((math.nan, 1.0), 1)):
        model = Clamped(*bounds).eval()
        prepared = fxq.prepare(model, X, qconfig)
        prepared.calibrate([X], progress=False)
        assert [len(unit.nodes) for unit in prepared.plan.units] == [unit]
        y = fxq.convert(prepared)(X)
        torch.testing.assert_close(y, model(X), rtol=0, atol=0, equal_nan=True)


class Clamped(nn.Module):
    """A linear layer and a clamp."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.fc, self.low, self.high = nn.Linear(12, 16), low, high

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).clamp(self.low, self.high)


def test_layers_with_ranges_of_tokens_are_trained():
    torch.manual_seed(0)
    qat = fxq.prepare_qat(
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), X[..., :6], fxq.default_per_token_qconfig
    )
    x = X[..., :6].clone().requires_grad_()
    qat(x).square().sum().backward()
    assert all(float(each.grad.abs().sum()) > 0 for each in (x, *qat.parameters()))
    int8, simulated = fxq.convert(qat), fxq.convert(qat, to="fake_quant")
    assert isinstance(int8.get_submodule("0"), QuantizedDynamicLinear)
    torch.testing.assert_close(int8(X[..., :6]), simulated(X[..., :6]), rtol=0, atol=FLOAT_SUMS)


def test_what_cannot_be_measured_in_each_call_says_so():
    prepared = fxq.prepare(Net().eval(), X, fxq.default_dynamic_qconfig)
    why = "its QConfig measures ranges at run time (is_dynamic=True), which linear and recurrent layers alone do"
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


FLOAT_SUMS = 1e-6
"""Float32 sums of a dozen products near 1, in two orders, relative and absolute."""

WEIGHTS = (
    fxq.QScheme(bits=4, symmetric=True, axis=0, group_size=4),
    fxq.QScheme(bits=8, symmetric=True, axis=0),
    fxq.QScheme(bits=12, signed=False, axis=-2),
)


@torch.no_grad()
@pytest.mark.parametrize("scheme", WEIGHTS, ids=str)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_weight_alone_may_be_on_any_grid(backend, scheme):
    """Nothing is multiplied in integers, so nothing is refused; int8 adds the same products in an order of its own."""
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
        packed = isinstance(int8.first, QuantizedWeightOnlyLinear)
        assert packed == (scheme.bits <= 8)
        if packed:
            torch.testing.assert_close(int8(X), simulated(X), rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
            assert torch.equal(int8.first(X), int8.first.reference(X))
        else:
            assert torch.equal(int8(X), simulated(X))
        assert [(row.pattern, row.breach) for row in int8.parity.rows] == packed * [("weight_only_linear", "")] * 2


def test_products_with_a_stored_weight_are_no_int8(capsys):
    qconfig = fxq.QConfig(fxq.PlaceholderObserver, fxq.default_dynamic_qconfig.weight)
    mapping = fxq.QConfigMapping().set_global(fxq.default_dynamic_qconfig).set_module_name("last", qconfig)
    coverage = fxq.prepare(Net().eval(), X, mapping).coverage()
    assert [(row.node, row.fate) for row in coverage if row.fate != "float"] == [("first", "int8"), ("last", "weight")]
    assert 0 < coverage.int8_macs < 1
    assert "weight_only_linear        1  " in str(coverage)
    assert "\n1 units become int8, 1 keep their weight in integers, 3 operators stay float; " in str(coverage)


SEQUENCE = torch.linspace(-2, 3, 2 * 7 * 12).sin().reshape(2, 7, 12)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda x, y: x @ y.transpose(1, 2), "matmul"),
        (lambda x, y: torch.matmul(input=x, other=y.transpose(2, 1)), "matmul"),
        (lambda x, y: x.matmul(y.transpose(-1, -2)[0]), "matmul"),
        (lambda x, y: torch.bmm(x, y.transpose(1, 2)), "matmul"),
        (lambda x, y: x.bmm(mat2=y.permute(0, 2, 1)), "matmul"),
        (lambda x, y: x[0].mm(y[1].t()), "matmul"),
        (lambda x, y: x @ y[0, 0], "matmul"),
        (lambda x, y: x[0, 0] @ y.transpose(1, 2), "matmul"),
        (lambda x, y: x @ y.transpose(1, 2) * 0.3, "matmul_scaled"),
        (lambda x, y: torch.bmm(x, y.transpose(1, 2)) / 12**0.5, "matmul_scaled"),
        (lambda x, y: F.relu(x @ y.transpose(1, 2)), "matmul_act"),
        (lambda x, y: torch.clamp(torch.bmm(x, y.transpose(1, 2)), -1, 1), "matmul_act"),
    ],
)
def test_of_two_tensors(forms_of, body, pattern):
    forms = forms_of(
        lambda m, x: body(m.first(x), m.second(x)), x=SEQUENCE, first=nn.Linear(12, 12), second=nn.Linear(12, 12)
    )
    unit = forms.prepared.plan.units[-1]
    assert (unit.pattern, unit.inputs) == (pattern, ("a", "b"))
    assert isinstance(forms.prepared.plan.policies[unit.roles["y"]], Observed)
    assert not [r for r in forms.prepared.plan.refusals if not r.excused]
    assert forms.sqnr > 30


def test_a_factor_may_be_a_constant_of_the_model(forms_of):
    """On the left it is put on a grid as an activation is; on the right it is the weight of a linear layer."""

    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.basis = nn.Parameter(torch.linspace(-9, 9, 5 * 7).sin().reshape(5, 7))

        def forward(self, x):
            return self.basis @ torch.tanh(x)

    forms = forms_of(lambda m, x: m.inner(x), x=SEQUENCE, inner=Projected())
    assert forms.units[-1] == "matmul"
    assert forms.sqnr > 30


def test_attention_of_any_batch_and_length(forms_of):
    """Softmax takes real numbers from one integer product to another; what was calibrated on does not bind it."""

    def body(m, x):
        q, k, v = m.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1)
        return m.out((weights @ v).transpose(1, 2).flatten(2))

    forms = forms_of(body, x=SEQUENCE, qkv=nn.Linear(12, 36), out=nn.Linear(12, 12))
    assert [unit for unit in forms.units if "matmul" in unit] == ["matmul_scaled", "matmul"]
    assert not forms.prepared.coverage().float_rows
    assert "attention_weights" in forms.units
    assert forms.prepared.coverage().int8_macs == 1
    assert forms.sqnr > 25
    longer = SEQUENCE.reshape(1, 14, 12)
    assert forms.int8(longer).shape == longer.shape
    expected = forms.prepared(longer)
    assert (forms.int8(longer) - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("scaled", [lambda y: y * -0.5, lambda y: y * 0, lambda y: y / 0.5 - y])
def test_other_numbers_are_units_of_their_own(plan_of, scaled):
    plan = plan_of(lambda m, x: scaled(m.first(x) @ x), x=torch.rand(2, 5, 5), first=nn.Linear(5, 5))
    assert "matmul" in [unit.pattern for unit in plan.units]


def test_bounds_that_are_computed_leave_the_product_alone(plan_of):
    plan = plan_of(lambda m, x: (m.first(x) @ x).clamp(max=x.max()), x=torch.rand(2, 5, 5), first=nn.Linear(5, 5))
    assert [unit.pattern for unit in plan.units] == ["linear", "matmul"]
    assert "its bounds are computed at run time" in [refusal.reason for refusal in plan.refusals]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"args": (torch.float32,)}, "torch.float32: only a plain product has an integer form"),
        ({"kwargs": {"out_dtype": torch.float64}}, "out_dtype=torch.float64: only a plain product has an integer form"),
    ],
)
def test_further_arguments_are_refused(extra, reason):
    """``out_dtype`` runs on GPUs only, so no model is traced here."""
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    node = graph.call_function(torch.bmm, (a, b, *extra.get("args", ())), extra.get("kwargs", {}))
    refused = two_factors({"a": a, "b": b, "matmul": node})
    assert refused is not None
    assert refused.reason == reason


def test_sums_must_fit(plan_of):
    depth = MOST_PRODUCTS + 1

    def body(m, x):
        return F.relu(x @ x.transpose(0, 1)) + 1

    assert [(r.pattern, r.reason) for r in plan_of(body, x=torch.rand(2, depth)).refusals if not r.excused] == [
        ("matmul", "33026 products per output can overflow an int32 sum; 33025 cannot")
    ]
    units = plan_of(body, x=torch.rand(2, depth - 1)).units
    assert [unit.pattern for unit in units] == ["transpose", "matmul_act", "add_number"]


INDICES = torch.arange(24).reshape(4, 6) % 11
FLOAT_SUMS_EMBEDDING = 1e-6
"""torch adds the rows of a bag in an order of its own: float32 sums of six numbers near 1, relative and absolute."""


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.fc = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.word(ids) + self.place(torch.arange(6)))


class Bags(nn.Module):
    def __init__(self, mode: str = "sum") -> None:
        super().__init__()
        self.bag, self.gate = nn.EmbeddingBag(11, 8, mode=mode), nn.Linear(6, 6)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.bag(input=ids, per_sample_weights=self.gate(x) if self.bag.mode == "sum" else None)


def assert_parity(prepared, *inputs: Tensor) -> None:
    """Every unit keeps the contract; look-ups are measured too."""
    parity = measure_parity(fxq.convert(prepared), fxq.convert(prepared, to="fake_quant"), inputs)
    assert [row.pattern for row in parity] == [unit.pattern for unit in prepared.plan.units]
    assert parity.breaches == ()


def converted(model: nn.Module, *inputs: Tensor, qconfig=None):
    prepared = fxq.prepare(model.eval(), inputs, qconfig).calibrate([inputs], progress=False)
    forms = {to: fxq.convert(prepared, to=to) for to in ("int8", "fake_quant", "reference")}
    with torch.no_grad():
        return prepared, forms, {to: form(*inputs) for to, form in forms.items()}


def test_tables_are_quantized_by_default():
    prepared, forms, results = converted(Words(), INDICES)
    assert [unit.pattern for unit in prepared.plan.units] == ["embedding", "embedding", "add", "linear"]
    assert prepared.coverage().float_rows == ()
    table = forms["int8"].word
    assert isinstance(table, QuantizedEmbedding)
    assert table.qparams("weight").scheme == fxq.QScheme(signed=False, axis=0, float_qparams=True)
    assert torch.equal(results["reference"], results["fake_quant"])
    assert_parity(prepared, INDICES)


@pytest.mark.parametrize(
    ("qconfig", "dtype", "columns"),
    [
        (fxq.float_qparams_weight_only_qconfig, torch.uint8, 8),
        (fxq.float_qparams_weight_only_qconfig_4bit, torch.uint8, 4),
        (fxq.get_default_qconfig(), torch.int8, 8),
    ],
)
def test_a_table_alone_in_every_form(qconfig, dtype, columns):
    """Nothing but the table is on a grid, so that all forms give the same bits; no calibration is asked for."""
    model = nn.Sequential(nn.Embedding(11, 8)).eval()
    prepared = fxq.prepare(model, INDICES, qconfig)
    int8 = fxq.convert(prepared)
    assert int8.get_submodule("0").weight.dtype == dtype
    assert int8.get_submodule("0").weight.shape == (11, columns)
    assert torch.equal(int8(INDICES), fxq.convert(prepared, to="fake_quant")(INDICES))
    assert torch.equal(int8(INDICES), fxq.convert(prepared, to="reference")(INDICES))
    assert not torch.equal(int8(INDICES), model(INDICES))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_in_every_form(mode):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    prepared, forms, results = converted(Bags(mode), INDICES, x)
    assert "embedding_bag" in [unit.pattern for unit in prepared.plan.units]
    assert isinstance(forms["int8"].bag, QuantizedEmbeddingBag)
    assert torch.equal(results["reference"], results["fake_quant"])
    torch.testing.assert_close(
        results["int8"], results["fake_quant"], rtol=FLOAT_SUMS_EMBEDDING, atol=FLOAT_SUMS_EMBEDDING
    )
    assert_parity(prepared, INDICES, x)


def test_rows_are_put_on_a_grid_by_who_reads_them():
    prepared, forms, _ = converted(nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 3)), INDICES)
    assert [node.name for node in forms["int8"].graph.nodes] == [
        "input_1",
        "_0",
        "_0_quantize",
        "_1",
        "output",
    ]
    assert [(unit.pattern, "y" in unit.roles) for unit in prepared.plan.units] == [
        ("embedding", False),
        ("linear", False),
    ]


def refused(layer: nn.Module, qconfig=None) -> str:
    model = nn.Sequential(layer, nn.Linear(8, 3)).eval()
    (row,) = fxq.prepare(model, INDICES, qconfig).coverage().float_rows
    return row.reason


def test_reasons_to_stay_float():
    assert refused(nn.Embedding(11, 8, max_norm=1.0)) == "max_norm=1.0 changes the table in forward"
    grouped = fxq.QConfig(
        activation=fxq.MinMaxObserver,
        weight=fxq.PerChannelMinMaxObserver.with_args(scheme=fxq.QScheme(axis=0, group_size=4)),
    )
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, grouped)
    assert refused(nn.Embedding(11, 8), mapping) == (
        "backend 'cpu': tables with one scale per group have no integer operator; backend='reference' simulates them"
    )
    wide = fxq.QConfig(fxq.MinMaxObserver, fxq.PerChannelMinMaxObserver.with_args(bits=12))
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, wide)
    assert refused(nn.Embedding(11, 8), mapping) == "backend 'cpu': 12 bit tables do not fit bytes"
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, None)
    assert refused(nn.Embedding(11, 8), mapping) == "the configuration leaves it in float: set_object_type(Embedding)"


class Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.table, self.function = nn.Parameter(torch.randn(11, 8)), function

    def forward(self, ids: Tensor) -> Tensor:
        return self.function(ids, self.table).relu()


def test_a_function_of_a_constant_table_is_a_layer():
    prepared, forms, _ = converted(Function(F.embedding), INDICES)
    assert [unit.pattern for unit in prepared.plan.units] == ["embedding"]
    assert forms["int8"].table.weight.dtype == torch.uint8


def test_functions_that_stay_float(plan_of):
    plan = plan_of(lambda m, x: m.fc(F.embedding(INDICES, x)), x=torch.rand(11, 4), fc=nn.Linear(4, 2))
    assert [(r.node, r.reason) for r in plan.refusals] == [
        ("embedding", "its weight is computed from the inputs; only one that stays the same is quantized")
    ]
    plan = plan_of(lambda m, x: m.fc(F.embedding_bag(INDICES, x)), x=torch.rand(11, 4), fc=nn.Linear(4, 2))
    assert [(r.node, r.reason) for r in plan.refusals] == [
        ("embedding_bag", "its weight is computed from the inputs; only one that stays the same is quantized")
    ]


class BagFunction(nn.Module):
    """``F.embedding_bag`` with a table of its own; what a call gives by position and keyword are its inputs."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.table, self.options = nn.Parameter(torch.randn(11, 8, generator=torch.Generator().manual_seed(3))), options

    def forward(self, ids: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(ids, self.table, offsets, per_sample_weights=weights, **self.options)


FLAT, BORDERS = INDICES.reshape(-1), torch.tensor([0, 4, 4, 15, 24])
SHARES = torch.rand(24, generator=torch.Generator().manual_seed(4))
CALLS = {
    "each row is a bag": ({}, (INDICES,)),
    "offsets": ({}, (FLAT, BORDERS[:-1])),
    "the greatest": ({"mode": "max"}, (FLAT, BORDERS[:-1])),
    "offsets and weights": ({"mode": "sum"}, (FLAT, BORDERS[:-1], SHARES)),
    "weights alone": ({"mode": "sum"}, (INDICES, None, SHARES.reshape(4, 6))),
    "the last offset, and padding": ({"include_last_offset": True, "padding_idx": -9}, (FLAT, BORDERS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bag_of_a_constant_table_is_the_layer(name):
    """The layer of the same table is the oracle: prepared, converted, and trained."""
    options, inputs = CALLS[name]
    model = BagFunction(**options).eval()
    layer = nn.EmbeddingBag(11, 8, _weight=model.table.detach(), **options).eval()
    prepared = fxq.prepare(model, inputs)
    assert [unit.pattern for unit in prepared.plan.units] == ["embedding_bag"]
    assert prepared.coverage().float_rows == ()
    assert torch.equal(prepared(*inputs), model(*inputs))
    int8 = fxq.convert(prepared)
    assert isinstance(int8.table, QuantizedEmbeddingBag)
    assert torch.equal(int8(*inputs), QuantizedEmbeddingBag(layer, int8.table.qparams("weight"))(*inputs))
    trained = fxq.prepare_qat(model.train(), inputs)
    assert "table" in dict(trained.named_parameters())
    torch.testing.assert_close(trained(*inputs), int8(*inputs), rtol=FLOAT_SUMS_EMBEDDING, atol=FLOAT_SUMS_EMBEDDING)
    assert torch.equal(fxq.convert(trained)(*inputs), int8(*inputs))


def test_bags_of_one_table_with_other_offsets_are_one_layer():
    class Twice(BagFunction):
        def forward(self, ids: Tensor, offsets: Tensor, others: Tensor) -> Tensor:
            return super().forward(ids, offsets) - super().forward(ids, others)

    model, inputs = Twice().eval(), (FLAT, BORDERS[:-1], BORDERS[:-1] // 2)
    prepared, forms, _ = converted(model, *inputs)
    assert torch.equal(prepared(*inputs), model(*inputs))
    assert [unit.pattern for unit in prepared.plan.units][:2] == ["embedding_bag"] * 2
    calls = [node.target for node in prepared.graph.nodes if node.op == "call_module"]
    assert calls[:2] == ["table", "table"]
    assert torch.equal(forms["reference"](*inputs), forms["fake_quant"](*inputs))


def test_a_bag_that_shortens_its_rows_stays_float():
    model = nn.Sequential(BagFunction(max_norm=1.0), nn.Linear(8, 3)).eval()
    (row,) = fxq.prepare(model, (INDICES,)).coverage().float_rows
    assert row.reason == "max_norm=1.0 changes the table in forward"
