"""``torch.cond``: which branch runs stays a float question, and each branch is quantized inside."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, warn
from fxquant.measure.noise import sqnr
from fxquant.plan.qconfig import NOTHING_MATCHES
from tests.sampling import one_of

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.export, on torch.cond


class Chooses(nn.Module):
    """A layer, one of two layers by the sign of a sum, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.cond(y.sum() > 0, lambda y: torch.relu(self.up(y)) + y, lambda y: self.down(y) * 2, (y,))
        return self.last(y)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Chooses().eval()


def batches(model: nn.Module, kinds: tuple[bool, ...] = (True, False)) -> list[Tensor]:
    """Return batches that take these branches, in turns; each twice, so that ranges settle."""
    found: list[Tensor] = []
    generator = torch.Generator().manual_seed(1)
    while len(found) < 8:
        x = torch.randn(4, 8, generator=generator) * 2
        if bool(model.get_submodule("first")(x).sum() > 0) is kinds[len(found) % len(kinds)]:
            found.append(x)
    return found + found


def layers(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if isinstance(module, fxq.nn.QuantizedLinear)]


CALLS = [f"cond.when_{name}" for name in ("true.up", "false.down")]


@pytest.mark.parametrize("door", one_of(2, ["program", "auto"]))
def test_both_branches_are_quantized(model, door):
    data = batches(model)
    given: Any = torch.export.export(model, (data[0],), strict=False) if door == "program" else model
    prepared = fxq.prepare(given, data[0])
    assert [(row.node, row.module) for row in prepared.coverage().rows if row.fate == "int8"] == [
        ("first", "first"),
        ("cond.when_true.relu", "up"),
        ("cond.when_false.down", "down"),
        ("last", "last"),
    ]
    assert prepared.coverage().int8_macs == 1.0
    with torch.no_grad():
        for x in data:
            assert torch.equal(prepared(x), model(x))
        for form in ("int8", "reference", "fake_quant"):
            converted = fxq.convert(prepared, to=form)
            assert min(sqnr(model(x), converted(x)) for x in data) > 25
    assert layers(fxq.convert(prepared)) == ["first", *CALLS, "last"]


@pytest.mark.slow
def test_copies_states_and_the_explicit_form_have_the_branches(model):
    data = batches(model)
    prepared = fxq.prepare(model, data[0])
    fxq.calibrate(prepared, data, progress=False)
    converted = fxq.convert(prepared)
    fresh = fxq.prepare(model, data[0])
    fresh.load_state_dict(prepared.state_dict())
    again = pickle.loads(pickle.dumps(prepared))
    copies = [fxq.convert(fresh), fxq.convert(again), copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))]
    explicit = fxq.explicit(converted)
    program = fxq.export(converted, (data[0],)).module()
    with torch.no_grad():
        for x in data[:4]:
            expected = converted(x)
            assert all(torch.equal(one(x), expected) for one in copies)
            torch.testing.assert_close(explicit(x), expected, rtol=0, atol=0.05)
            torch.testing.assert_close(program(x), expected, rtol=0, atol=0.05)


def test_a_branch_that_no_batch_has_run_stays_float(model):
    data = batches(model, (True,))
    prepared = fxq.prepare(model, data[0])
    fxq.calibrate(prepared, data, progress=False)
    with pytest.warns(fxq.FxQuantWarning, match="a branch of torch.cond stays float"):
        converted = fxq.convert(prepared)
    assert layers(converted) == ["first", CALLS[0], "last"]
    rows = {row.module: row for row in converted.quant_coverage.rows}
    assert [rows[name].fate for name in ("first", "up", "down", "last")] == ["int8", "int8", "float", "int8"]
    assert rows["down"].reason == "no batch of the calibration has run this branch"
    assert converted.quant_coverage.int8_macs < 1
    with torch.no_grad():
        assert min(sqnr(model(x), converted(x)) for x in batches(model, (False,))) > 10


class ChoosesSine(Chooses):
    """One of its branches has nothing to quantize."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(torch.cond(y.sum() > 0, lambda y: self.up(y), lambda y: torch.sin(y) * 2, (y,)))


def in_float(model: nn.Module, products: int, config: Any = None) -> list[tuple[str, int, str]]:
    """Name, products and reason of each branch that stays float as a whole, the same before and after ``convert``."""
    prepared = fxq.prepare(model, torch.ones(4, 8), config)
    fxq.calibrate(prepared, batches(model), progress=False)
    tables = [prepared.coverage(), fxq.convert(prepared).quant_coverage]
    before, after = ([row for row in table.rows if row.operator == "branch"] for table in tables)
    assert before == after
    for table in tables:
        assert sum(row.macs for row in table.rows) == products
        assert table.int8_macs == 1 - sum(row.macs for row in before) / products
    return [(row.node, row.macs, row.reason) for row in before]


@pytest.mark.slow
def test_a_branch_that_cannot_be_prepared_has_a_row_with_the_error(model):
    nothing = "the branch could not be quantized: PlanError: the model has no operator that can be quantized"
    config = fxq.get_default_qconfig_mapping().set_module_name("down", None)
    assert in_float(model, 896, config) == [("cond.when_false", 256, nothing)]
    with torch.no_grad():
        model.get_submodule("up").weight[0, 0] = torch.nan
    (row,) = [row for row in fxq.prepare(model, torch.ones(4, 8)).coverage().rows if row.operator == "branch"]
    assert (row.node, row.macs) == ("cond.when_true", 256)
    not_finite = "PlanError: the model holds weights or statistics that are not finite"
    assert row.reason == f"the branch could not be quantized: {not_finite}"


def test_warnings_of_branches_are_given_but_those_of_rules_for_the_other_branch(model, monkeypatch):
    make = fxq.Quantizer.__init__

    def warning_while_made(self: Any, *given: Any, **options: Any) -> None:
        make(self, *given, **options)
        if not self.branches:  # a branch
            warn("something about a layer")
            warn(NOTHING_MATCHES)

    monkeypatch.setattr(fxq.Quantizer, "__init__", warning_while_made)
    with pytest.warns(fxq.FxQuantWarning, match="something about a layer") as warned:
        fxq.prepare(model, torch.ones(4, 8))
    assert {str(each.message) for each in warned} == {"something about a layer"}


def test_a_branch_with_nothing_to_quantize_has_a_row():
    torch.manual_seed(0)
    ((node, macs, reason),) = in_float(ChoosesSine().eval(), 640)
    assert (node, macs) == ("cond.when_false", 0)
    assert "no operator that can be quantized" in reason


@pytest.mark.slow
def test_rules_name_layers_of_branches_by_their_paths_in_the_model(model):
    x = torch.ones(2, 8)
    whole = nn.Sequential(nn.Linear(8, 8), model).eval()
    config = fxq.get_default_qconfig_mapping().set_module_name("1.up", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxq.FxQuantWarning)
        prepared = fxq.prepare(whole, x, config)
    assert [row.module for row in prepared.coverage().rows if row.fate == "int8"] == [
        "0",
        "1.first",
        "1.down",
        "1.last",
    ]
    with pytest.warns(fxq.FxQuantWarning, match="upp"):
        fxq.prepare(whole, x, fxq.get_default_qconfig_mapping().set_module_name("1.upp", None))


def test_a_batch_that_fails_changes_no_branch(model):
    data = batches(model)
    prepared = fxq.prepare(model, data[0])
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    handle = prepared.graph_module.get_submodule("last").register_forward_pre_hook(_fail)
    with pytest.raises(Exception, match="on purpose"):
        prepared(data[0])
    handle.remove()
    after = prepared.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def _fail(*_: Any) -> None:
    raise RuntimeError("on purpose")


class Nests(nn.Module):
    """A choice inside of a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)

        def positive(y: Tensor) -> Tensor:
            return torch.cond(y.max() > 2, lambda y: self.inner(y), lambda y: y + 1, (y,))

        return torch.cond(y.sum() > 0, positive, lambda y: y - 1, (y,))


@pytest.mark.slow
def test_branches_in_branches():
    torch.manual_seed(0)
    model = Nests().eval()
    generator = torch.Generator().manual_seed(2)
    data = [torch.randn(4, 8, generator=generator) * scale for scale in (1, 4) * 4] * 2
    prepared = fxq.prepare(model, data[0])
    fxq.calibrate(prepared, data, progress=False)
    converted = fxq.convert(prepared)
    assert layers(converted) == ["first", "cond.when_true.cond.when_true.inner"]
    with torch.no_grad():
        assert min(sqnr(model(x), converted(x)) for x in data) > 15


@pytest.mark.slow
def test_a_batch_that_fails_changes_no_branch_in_a_branch():
    torch.manual_seed(0)
    model = nn.Sequential(Nests(), nn.Linear(8, 8)).eval()
    generator = torch.Generator().manual_seed(2)
    data = [torch.randn(4, 8, generator=generator) * scale for scale in (1, 4) * 4] * 2
    prepared = fxq.prepare(model, data[0])
    fxq.calibrate(prepared, data, progress=False)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    prepared.graph_module.get_submodule("1").register_forward_pre_hook(_fail)
    for x in data[:8]:
        with pytest.raises(Exception, match="on purpose"):
            prepared(x * 100)
    changed = [name for name, value in prepared.state_dict().items() if not same(value, before[name])]
    assert changed == []


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("form", one_of(2, ["int8", "reference"]))
def test_a_branch_behind_a_float_layer_warns_of_no_gradients(model, form):
    """Its operands ask for gradients because the layer has parameters; the caller of the model asks for none."""
    data = batches(model)
    config = fxq.get_default_qconfig_mapping().set_module_name("first", None)
    prepared = fxq.prepare(model, data[0], config)
    fxq.calibrate(prepared, data, progress=False)
    converted = fxq.convert(prepared, to=form)
    for built in (converted, copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        with warnings.catch_warnings():
            warnings.simplefilter("error", fxq.FxQuantWarning)
            built(data[0])
    with pytest.warns(fxq.FxQuantWarning, match="an input asks for gradients"):
        converted(data[0].clone().requires_grad_())


@pytest.mark.slow
def test_training_leaves_branches_in_float(model):
    data = batches(model)
    prepared = fxq.prepare_qat(model, data[0])
    for x in data:
        prepared(x).sum().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())
    assert layers(fxq.convert(prepared.eval())) == ["first", "last"]


@pytest.mark.slow
def test_a_model_without_ranges_has_none_in_branches_either(model):
    data = batches(model)
    calibrated = fxq.convert(fxq.calibrate(fxq.prepare(model, data[0]), data, progress=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxq.FxQuantWarning)
        empty = fxq.convert(fxq.prepare(model, data[0]), allow_uncalibrated=True)
    assert layers(empty) == ["first", *CALLS, "last"]
    empty.load_state_dict(calibrated.state_dict())
    with torch.no_grad():
        assert all(torch.equal(empty(x), calibrated(x)) for x in data[:2])


class Overflows(Chooses):
    """One branch hands NaN to its layer."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.cond(y.sum() > 0, lambda y: self.up(y), lambda y: self.down(torch.log(-y.abs())), (y,))
        return self.last(y)


def test_a_branch_that_has_run_and_has_no_range_is_an_error():
    torch.manual_seed(0)
    model = Overflows().eval()
    data = batches(model)
    prepared = fxq.prepare(model, data[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxq.FxQuantWarning)
        fxq.calibrate(prepared, data, progress=False)
        with pytest.raises(CalibrationError, match=r"the branch cond\.when_false"):
            fxq.convert(prepared)


class Holds(nn.Module):
    """A choice one module further down."""

    def __init__(self) -> None:
        super().__init__()
        self.b = Chooses()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x)


class Alike(nn.Module):
    """Two choices, at paths that differ in a dot and an underscore."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.a_b = Holds(), Chooses()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + 10 * self.a_b(-x)


@pytest.mark.slow
def test_a_state_has_the_branches_of_paths_that_differ_in_a_dot():
    torch.manual_seed(0)
    model = Alike().eval()
    data = [x * sign for x in batches(model.a_b)[:4] for sign in (1, -1)] * 2
    prepared = fxq.calibrate(fxq.prepare(model, data[0]), data, progress=False)
    assert len({path.replace(".", "_") for path, _ in prepared.branches}) < len({path for path, _ in prepared.branches})
    fresh = fxq.prepare(model, data[0])
    fresh.load_state_dict(prepared.state_dict())
    one, other = fxq.convert(prepared), fxq.convert(fresh)
    assert layers(one) == layers(other)
    assert len(layers(one)) == 8
    with torch.no_grad():
        assert all(torch.equal(one(x), other(x)) for x in data)
