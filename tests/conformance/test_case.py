"""Cases as they are read."""

from __future__ import annotations

import json

import pytest
import torch

from fxquant.conformance.case import load_cases
from fxquant.errors import InputError


def test_all_kinds_of_operators_are_there():
    cases = load_cases()
    assert len(cases) > 70
    assert {case.operator for case in cases} == {
        *("quantize", "dequantize", "fake_quantize", "linear", "conv2d", "conv_transpose2d"),
        *("avg_pool2d", "max_pool2d", "add", "mul", "cat", "matmul", "qparams"),
    }
    for case in cases:
        assert case.expected.dtype == torch.float64
        assert case.expected.isfinite().all()


def test_real_numbers_and_stored_integers(tmp_path):
    row = {"name": "n", "attributes": {}, "why": "w", "source": "s", "expected": {"shape": [2], "data": [1, 2]}}
    rows = [
        {**row, "operator": "quantize", "inputs": {"x": {"shape": [2], "data": ["nan", -0.5]}}},
        {**row, "operator": "add", "inputs": {"a": {"shape": [3, 7], "fill": 9}}},
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    real, stored = load_cases(tmp_path)
    assert real.inputs["x"].isnan().tolist() == [True, False]
    assert (stored.inputs["a"].dtype, stored.inputs["a"].shape, int(stored.inputs["a"].sum())) == (
        torch.int32,
        (3, 7),
        189,
    )


def test_a_folder_without_cases_is_named(tmp_path):
    with pytest.raises(InputError, match="there are no conformance cases"):
        load_cases(tmp_path)
