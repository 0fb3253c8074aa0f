"""convert(..., tune=batch): with times that are made up, so that what is decided is known."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.analysis import tune as module_under_test
from fxquant.errors import InputError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(torch.relu(self.b(self.a(x))))


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def prepared():
    torch.manual_seed(0)
    return fxq.calibrate(fxq.prepare(Net().eval(), X), [X], progress=False)


def made_up(monkeypatch, float_units=(), whole=(3.0, 2.0, 1.0), border=0.0):
    """Seconds of units: in int8 and float 2 and 1 for ``float_units``, else 0.5 and 5; of the model in three forms."""

    class Timer:
        infos = dict.fromkeys(("x", "a", "b", "relu", "c"))

        def __init__(self, model, int8, units, bound, programs) -> None:
            self.in_int8 = {unit.root: 2.0 if unit.root in float_units else 0.5 for unit in units}
            self.in_float = {name: 1.0 if name in float_units else 5.0 for name in self.in_int8}

        def round(self) -> None:
            pass

    class Borders:
        def __init__(self, programs, rounds) -> None:
            pass

        def seconds(self, value, qparams):
            return border, border

    monkeypatch.setattr(module_under_test, "UnitTimer", Timer)
    monkeypatch.setattr(module_under_test, "BoundaryTimer", Borders)
    times = dict(zip(("float", "int8", "tuned"), whole, strict=True))
    monkeypatch.setattr(module_under_test, "interleaved_medians", lambda calls, *_: {n: times[n] for n in calls})


def fates(tuning) -> dict[str, str]:
    return {row.unit: row.fate for row in tuning}


def test_what_is_faster_in_float_stays_float(prepared, monkeypatch, capsys):
    made_up(monkeypatch, float_units=("relu",))
    int8 = fxq.convert(prepared, tune=X)
    assert fates(int8.tuning) == {"a": "int8", "relu": "float", "c": "int8"}
    print(int8.tuning)
    assert capsys.readouterr().out == f"{int8.tuning}\n"  # and nothing while it was measured
    assert [unit.root for unit in int8.quant_plan.units] == ["a", "c"]
    assert isinstance(int8.get_submodule("b"), nn.Linear)
    row = int8.tuning.coverage.float_rows[0]
    assert (row.node, row.reason, row.excused) == (
        "relu",
        "measured: 2000000.0 µs in int8, 1000000.0 µs in float",
        True,
    )
    assert row.macs == sum(row.macs for row in prepared.coverage() if row.node == "relu") > 0  # of its linear layer
    assert torch.allclose(int8(X), prepared.graph_module(X), atol=0.1)


def test_the_figures_of_the_whole_model(prepared, monkeypatch):
    made_up(monkeypatch, float_units=("relu",), whole=(3.0, 2.0, 1.0))
    tuning = fxq.convert(prepared, tune=X).tuning
    assert (tuning.float_ms, tuning.int8_ms, tuning.tuned_ms) == (3000.0, 2000.0, 1000.0)
    assert tuning.threads == torch.get_num_threads()


def test_borders_count(prepared, monkeypatch):
    made_up(monkeypatch, float_units=("relu",), border=0.6)
    int8 = fxq.convert(prepared, tune=X)
    assert set(fates(int8.tuning).values()) == {"int8"}  # 2.0 in place of 1.0, and no border before and behind it
    assert next(row for row in int8.tuning if row.unit == "relu").borders_us == pytest.approx(1.2e6)


def test_if_the_units_promise_more_than_the_model_keeps_all_stay_int8(prepared, monkeypatch):
    made_up(monkeypatch, float_units=("relu",), whole=(3.0, 1.0, 2.0))
    int8 = fxq.convert(prepared, tune=X)
    assert set(fates(int8.tuning).values()) == {"int8"}
    assert int8.tuning.tuned_ms == int8.tuning.int8_ms == 1000.0
    assert torch.equal(int8(X), fxq.convert(prepared)(X))


def test_never_slower_than_float(prepared, monkeypatch):
    made_up(monkeypatch, float_units=("relu",), whole=(1.0, 2.0, 3.0))
    model = fxq.convert(prepared, tune=X, check=X)
    assert set(fates(model.tuning).values()) == {"float"}
    assert not model.quant_plan.units
    assert torch.equal(model(X), prepared.graph_module(X))
    assert not model.parity.rows
    assert len(model.tuning.coverage.float_rows) == 3


def test_parity_is_that_of_the_tuned_model(prepared, monkeypatch):
    made_up(monkeypatch, float_units=("relu",))
    parity = fxq.convert(prepared, tune=X, check=X).parity
    assert [row.unit for row in parity] == ["a", "c"]
    assert not parity.breaches


def test_the_prepared_model_is_as_before(prepared, monkeypatch):
    before = [unit.root for unit in prepared.plan.units]
    made_up(monkeypatch, float_units=("a", "relu", "c"))
    fxq.convert(prepared, tune=X)
    assert [unit.root for unit in prepared.plan.units] == before
    assert len(fxq.convert(prepared).quant_plan.units) == 3


def test_it_is_copied_and_pickled_with_the_model(prepared, monkeypatch):
    made_up(monkeypatch, float_units=("relu",))
    int8 = fxq.convert(prepared, tune=X)
    for other in (copy.deepcopy(int8), pickle.loads(pickle.dumps(int8))):
        assert other.tuning == int8.tuning
        assert torch.equal(other(X), int8(X))


def test_really_measured(prepared):
    """Whatever the clock says, the answer is one of the models that were measured, and the rows are complete."""
    int8 = fxq.convert(prepared, tune=X)
    tuning = int8.tuning
    assert [row.unit for row in tuning] == ["a", "relu", "c"]
    assert {unit.root for unit in int8.quant_plan.units} == {row.unit for row in tuning if row.fate == "int8"}
    assert tuning.tuned_ms <= min(tuning.float_ms, tuning.int8_ms)
    assert all(min(row.int8_us, row.float_us, row.borders_us) >= 0 for row in tuning)
    assert torch.allclose(int8(X), prepared.graph_module(X), atol=0.1)
    assert "units measured on" in str(tuning)


def test_trained_models_and_other_batches():
    qat = fxq.prepare_qat(Net(), X)
    qat(X)
    assert len(fxq.convert(qat.eval(), tune=(torch.randn(2, 4), "a label")).tuning) == 3


def test_only_int8_models_are_tuned(prepared):
    with pytest.raises(InputError) as error:
        fxq.convert(prepared, to="fake_quant", tune=X)
    assert str(error.value) == (
        "only int8 models are tuned\n  got:      to='fake_quant', tune=...\n  expected: to='int8'"
    )


def test_shells_are_not_tuned(prepared):
    with pytest.raises(InputError) as error:
        fxq.convert(prepared, allow_uncalibrated=True, tune=X)
    assert str(error.value) == (
        "a model without ranges cannot run, so it cannot be tuned\n"
        "  got:      allow_uncalibrated=True, tune=...\n"
        "  hint:     calibrate first, or leave tune out"
    )


def test_a_batch_that_does_not_fit(prepared):
    with pytest.raises(InputError, match="the batch to tune on"):
        fxq.convert(prepared, tune="no tensor")


def test_a_batch_that_does_not_run_is_refused(prepared):
    with pytest.raises(InputError) as caught:
        fxq.convert(prepared, tune=torch.randn(5, 3))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("the batch to tune on: this batch does not run through the model: mat1 and mat2 shapes")
    assert lines[1].startswith("  at:       %a ")
    assert lines[2] == "  got:      (float32[5, 3])"
