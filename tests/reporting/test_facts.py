from __future__ import annotations

import json

import fxquant as fxq
from fxquant.reporting.facts import facts
from fxquant.reporting.subject import subject_of


def test_everything_is_there_and_fits_json(calibrated: fxq.Quantizer) -> None:
    found = facts(subject_of(calibrated), [calibrated.example_args[0]])
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["title"] == "Net"
    assert [table["title"] for table in found["tables"]] == ["Coverage", "Parity"]
    summary = {label: value for label, value, _ in found["summary"]}
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
    assert found["summary"][0] == ("state", "planned", "not calibrated yet")
    assert "values have no range" in found["note"]
    assert len(found["drawings"]) == 1
