"""A model that is changed between prepare and convert is found out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from fxquant.quantizer.mutation import changed, checksums

X = torch.randn(2, 3, 8, 8)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()


def calibrated(model: nn.Module) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model, X), [X], progress=False)


def scale_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.mul_(2)


def swap_channels(model: nn.Module) -> None:
    model[0].weight.data = model[0].weight.data[[1, 0, 2, 3]]


def replace(model: nn.Module) -> None:
    model[0] = nn.Conv2d(3, 4, 3)


def train(model: nn.Module) -> None:
    model.train()(X)


CHANGES = {scale_in_place: "0.weight", swap_channels: "0.weight", replace: "0.weight", train: "1.running_mean"}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_after_prepare_is_named_once(model, change):
    prepared = calibrated(model)
    before = fxq.convert(prepared)(X)
    change(model)
    with pytest.warns(FxQuantWarning) as caught:
        after = fxq.convert(prepared)(X)
    lines = str(caught[0].message).splitlines()
    assert lines[0] == "the model was changed after prepare; what is converted is the copy that prepare took of it"
    assert lines[1] == f"  got:      {CHANGES[change]}"
    assert torch.equal(before, after)
    fxq.convert(prepared)


def test_a_prepared_model_that_changes_after_calibration_is_named(model):
    prepared = calibrated(model)
    with torch.no_grad():
        prepared.graph_module.get_parameter("3.weight").mul_(2)
    with pytest.warns(FxQuantWarning) as caught:
        fxq.convert(prepared)
    assert str(caught[0].message) == (
        "weights were changed after calibration: the ranges are those of values that the former ones made\n"
        "  got:      3.weight\n"
        "  hint:     calibrate a newly prepared model"
    )


def test_copies_and_loaded_states_are_no_changes(model):
    prepared = calibrated(model)
    fxq.convert(copy.deepcopy(prepared))
    other = fxq.prepare(copy.deepcopy(model).apply(lambda m: m.float()), X)
    other.load_state_dict(prepared.state_dict())
    fxq.convert(other)


def test_a_model_that_is_gone_is_not_asked(model):
    prepared = fxq.calibrate(fxq.prepare(copy.deepcopy(model), X), [X], progress=False)
    fxq.convert(prepared)


def test_what_the_graph_itself_counts_is_no_change():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1.0)
            return self.fc(x)

    model = Counting().eval()
    prepared = fxq.prepare(model, torch.randn(2, 4))
    fxq.calibrate(prepared, [torch.randn(2, 4)] * 3, progress=False)
    model(torch.randn(2, 4))  # nor is it if the user calls the model
    fxq.convert(prepared)


def test_every_dtype_has_a_checksum_and_casting_is_no_change(model):
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float32):
        before = checksums(model)
        assert changed(before, model.to(dtype)) == []
        assert changed(checksums(model), model) == []


def test_one_last_bit_is_a_change(model):
    before = checksums(model)
    weight = model[3].weight.data.view(-1)
    weight[7] = torch.nextafter(weight[7], torch.tensor(torch.inf))
    assert changed(before, model) == ["3.weight"]
