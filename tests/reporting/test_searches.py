"""What the page draws of a search: the same points, bits and costs as its table has."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.reporting.facts import facts
from fxquant.reporting.searches import searches
from fxquant.reporting.subject import subject_of


def test_the_front_and_the_bits_of_each_layer(searched: fxq.PrecisionSearch) -> None:
    (drawn,) = searches([searched])
    names = [each["name"] for each in drawn["candidates"]]
    assert names == ["W4A4", "W4A8", "W8A8"]
    assert [each["weight"] for each in drawn["candidates"]] == [4, 4, 8]
    assert [layer["unit"] for layer in drawn["layers"]] == [row.unit for row in searched]
    assert [names[place] for place in drawn["found"]["choices"]] == [row.choice for row in searched]
    assert len(drawn["points"]) == len(searched.pareto)
    for point, given in zip(drawn["points"], searched.pareto, strict=True):
        assert tuple(names[place] for place in point["choices"]) == given.choices
        assert point["sqnr"] == pytest.approx(given.sqnr, rel=1e-4)
        assert point["costs"]["size"] == given.cost.size
    assert [each["name"] for each in drawn["costs"]] == ["part", "size", "bitops", "activations"]
    assert {layer["has_result"] for layer in drawn["layers"]} == {True, False}  # the last layer gives float


def test_infinities_and_an_interval_are_words(calibrated: fxq.Quantizer) -> None:
    x = calibrated.example_args[0]
    found = fxq.search_precision(
        calibrated,
        [x],
        max_drop=100.0,
        metric=lambda output, exact: 100 * (output.argmax(1) == exact.argmax(1)).float().mean(),
        candidates=["W8A8", "float"],
        progress=False,
    )
    (drawn,) = searches([found])
    assert drawn["points"][-1]["sqnr"] == "inf"  # all in float
    assert drawn["notes"][0].startswith("the metric falls by ")
    json.dumps(drawn, allow_nan=False)


def test_a_report_holds_searches_beside_their_tables(calibrated: fxq.Quantizer, searched: fxq.PrecisionSearch) -> None:
    found = facts(subject_of(calibrated), results=[searched])
    assert [table["title"] for table in found["tables"]] == ["Coverage", "PrecisionSearch"]
    assert found["searches"] == searches([searched])
    assert facts(subject_of(calibrated))["searches"] == []


def test_a_layer_without_a_weight_has_no_bits_of_one() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.sigmoid(self.a(x)) * self.b(x))

    torch.manual_seed(0)
    x = torch.randn(8, 8)
    prepared = fxq.calibrate(fxq.prepare(Sum().eval(), x), [x], progress=False)
    found = fxq.search_precision(
        prepared, [x], budget=fxq.Budget(size=0.8), candidates=["W4A8", "W8A8"], progress=False
    )
    (drawn,) = searches([found])
    assert {layer["name"]: layer["has_weight"] for layer in drawn["layers"] if len(layer["name"]) > 1}
    assert not all(layer["has_weight"] for layer in drawn["layers"])
