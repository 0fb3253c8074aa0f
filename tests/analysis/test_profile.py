"""What is measured, and of what: no test looks at how long anything took."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.runtime import engine_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        return self.b(self.norm(self.a(x.mean((2, 3)))))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def profiled(model: Any, inputs: Any = X, **options: Any) -> fxq.Profile:
    return fxq.profile(model, inputs, rounds=2, **options)


def test_every_operator_of_the_int8_model_has_a_row(model: nn.Module) -> None:
    found = profiled(model)
    kinds = {row.name: (row.kind, row.operator, row.float_us is not None) for row in found}
    assert kinds == {
        "x_quantize": ("border", "Quantize", False),
        "conv": ("unit", "conv_bn_act", True),
        "mean": ("unit", "mean", True),
        "a": ("unit", "linear", True),
        "norm": ("float", "GroupNorm", True),
        "norm_quantize": ("border", "Quantize", False),
        "b": ("unit", "linear", True),
    }
    assert sum(row.share for row in found) == pytest.approx(1)
    assert [row.int8_us for row in found] == sorted((row.int8_us for row in found), reverse=True)
    assert all(row.line.split(":")[0].endswith("test_profile.py") for row in found if row.kind == "unit")
    assert found.threads == torch.get_num_threads()


def test_a_unit_in_float_is_all_its_operators(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from fxquant.measure import timing

    monkeypatch.setattr(timing, "seconds_of", lambda call, on_gpu=False: (call(), 1e-6)[1])
    rows = {row.name: row for row in profiled(model)}
    assert rows["conv"].float_us == pytest.approx(3)  # convolution, batch norm, ReLU
    assert rows["a"].float_us == pytest.approx(1)
    assert rows["conv"].graph_us == pytest.approx(1)


def test_programs_where_the_model_runs_by_them(model: nn.Module) -> None:
    prepared = fxq.calibrate(fxq.prepare(model, X), [X], progress=False)
    graph = profiled(prepared, int8=fxq.convert(prepared, engine="graph"))
    assert (graph.program_ms, graph.programs) == (None, "")
    assert all(row.int8_us == row.graph_us for row in graph)
    int8 = fxq.convert(prepared)
    found = profiled(prepared, int8=int8)
    if engine_of(int8) is None:  # no native library here
        assert found.program_ms is None
    else:
        assert found.program_ms is not None
        assert "program" in found.programs


def test_what_was_tuned_to_run_in_float_is_float(model: nn.Module) -> None:
    mapping = fxq.get_default_qconfig_mapping().set_module_name("a", None)
    prepared = fxq.calibrate(fxq.prepare(model, X), [X], progress=False)
    other = fxq.convert(fxq.calibrate(fxq.prepare(model, X, mapping), [X], progress=False))
    kinds = {row.name: row.kind for row in profiled(prepared, int8=other)}
    assert kinds["a"] == "float"
    assert kinds["b"] == "unit"


def test_inputs_of_any_kind_and_configurations(model: nn.Module) -> None:
    for inputs in ((X,), {"x": X}, [X]):
        assert {row.name for row in profiled(model, inputs)} >= {"conv", "a", "b"}
    weights = fxq.QConfig(fxq.PlaceholderObserver, fxq.get_default_qconfig_mapping().global_qconfig.weight)  # type: ignore[union-attr]
    assert not [row for row in profiled(model, qconfig=weights) if row.kind == "border"]


def test_nothing_is_changed(model: nn.Module) -> None:
    prepared = fxq.prepare(model, X)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    profiled(prepared)
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())


@pytest.mark.parametrize("rounds", [0, -1, True, 2.0])
def test_no_number_of_rounds_is_refused(model: nn.Module, rounds: Any) -> None:
    with pytest.raises(InputError, match="and at least one round"):
        fxq.profile(model, X, rounds=rounds)


def test_what_cannot_be_measured_is_refused(model: nn.Module) -> None:
    with pytest.raises(InputError, match="profile takes a model"):
        profiled(3)
    with pytest.raises(InputError, match="this model was not made by convert"):
        profiled(model, int8=model)
    with pytest.raises(InputError, match="do not run through the model"):
        profiled(model, torch.randn(2, 4, 12, 12))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.bn(self.fc(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_the_model_is_left_as_it_is(training: bool) -> None:
    model = Counting().train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    profiled(model, torch.randn(8, 4))
    assert model.training is training
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])] == []


def test_inputs_that_do_not_run_are_refused(model: nn.Module) -> None:
    prepared = fxq.prepare(model, X)
    prepared.observe(X)
    with pytest.raises(InputError, match="this batch does not run through the model"):
        profiled(prepared, torch.randn(2, 4, 12, 12))
