from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.reporting.about import about_rows
from fxquant.reporting.facts import facts
from fxquant.reporting.range_tables import COLUMNS, NUMERIC, range_tables
from fxquant.reporting.subject import subject_of


def test_everything_is_there_and_fits_json(calibrated: fxq.Quantizer) -> None:
    found = facts(subject_of(calibrated), [calibrated.example_args[0]])
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["title"] == "Net"
    assert [table["title"] for table in found["tables"]] == ["Coverage", "Parity"]
    summary = {label: value for label, value, *_ in found["summary"]}
    assert summary["state"] == "calibrated"
    assert summary["parity"] == "0 breaches"
    assert summary["float"] == "2"
    assert " → " in summary["size"]
    assert found["units"]["relu"]["nodes"] == ["conv", "bn", "relu"]
    assert found["units"]["relu"]["roles"] == {"x": "x", "y": "relu", "weight": "conv.weight@relu"}
    assert {name for unit in found["units"].values() for name in unit["roles"].values()} <= set(found["tensors"])


def test_results_of_the_user_are_added(calibrated: fxq.Quantizer) -> None:
    compared = fxq.compare(calibrated, fxq.convert(calibrated), [calibrated.example_args[0]], progress=False)
    found = facts(subject_of(calibrated), results=[compared])
    assert [table["title"] for table in found["tables"]] == ["Coverage", "Comparison"]


def test_an_uncalibrated_model_says_so(planned: fxq.Quantizer) -> None:
    found = facts(subject_of(planned))
    assert found["summary"][0] == ("state", "planned", "not calibrated yet", False)
    assert "values have no range" in found["note"]
    assert len(found["drawings"]) == 1


def test_an_output_that_is_mostly_noise_is_marked(calibrated: fxq.Quantizer) -> None:
    (x,) = calibrated.example_args
    clean, noisy = (facts(subject_of(calibrated), [batch])["summary"] for batch in (x, 1e6 * x))
    (row,) = [row for row in clean if row[0] == "output"]
    assert row[2:] == ("signal to noise, against the float model", False)
    assert float(row[1].removesuffix(" dB")) > 20
    (row,) = [row for row in noisy if row[0] == "output"]
    assert row[2:] == ("mostly noise: below 10 dB, against the float model", True)
    assert float(row[1].removesuffix(" dB")) < 10


def test_the_output_of_a_model_without_operators_is_that_of_its_simulation() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 8)
    prepared = fxq.prepare(nn.Sequential(nn.Linear(8, 8)).eval(), x, backend="reference")
    found = facts(subject_of(fxq.calibrate(prepared, [x], progress=False)), [x])
    assert [row[0] for row in found["summary"]] == ["state", "int8", "units", "float", "output", "size"]
    assert [table["title"] for table in found["tables"]] == ["Coverage"]


def test_an_output_of_zeros_says_nothing() -> None:
    x, model = torch.rand(4, 8), nn.Linear(8, 8)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    prepared = fxq.calibrate(fxq.prepare(nn.Sequential(model).eval(), x), [x], progress=False)
    (row,) = [row for row in facts(subject_of(prepared), [x])["summary"] if row[0] == "output"]
    assert row == ("output", "–", "0 throughout on this batch, of which nothing can be said", False)


def test_products_that_could_not_be_counted_are_told() -> None:
    class Outside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.detach().numpy() * 2)

    x = torch.rand(4, 8)
    prepared = fxq.prepare(nn.Sequential(nn.Linear(8, 8), Outside()).eval(), x, leaf_modules=(Outside,))
    assert facts(subject_of(prepared))["summary"][1][2] == (
        "of 0.0 M multiply-accumulates. Those of 1 (Tensor.numpy) could not be counted, and are left out"
    )


def test_what_a_report_is_of(calibrated: fxq.Quantizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    found = dict(about_rows(subject_of(calibrated), {"data": "two batches"}))
    assert list(found) == ["model", "weights", "data", "date", "versions"]
    assert (found["model"], found["data"], found["date"]) == ("Net", "two batches", "1970-01-02 00:00 UTC")
    assert found["weights"].partition(" ")[0] == str(len(calibrated.graph_module.state_dict()))
    assert dict(about_rows(subject_of(calibrated)))["data"] == "calibrated on 2 batches"
    assert dict(about_rows(subject_of(fxq.convert(calibrated))))["data"] == "not kept in a converted model"


def test_ranges_are_tables(calibrated: fxq.Quantizer) -> None:
    found = facts(subject_of(calibrated))
    tables = range_tables(found["tensors"], found["units"])
    of_values, of_weights = ({row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in t["rows"]} for t in tables)
    assert of_values["x"]["smallest"] == -4.0
    assert of_values["x"]["chosen"] == "measured by HistogramObserver"
    assert of_weights["relu"]["channels"] == 8
    assert all(len(row) == 1 + len(COLUMNS) == 1 + len(NUMERIC) for table in tables for row in table["rows"])
