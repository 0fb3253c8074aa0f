from __future__ import annotations

import json
import math

import torch

from fxquant.reporting.numbers import short, shorts


def test_numbers_are_short_and_fit_json() -> None:
    assert short(0.123456789) == 0.12346
    assert short(1e-9 / 3) == 3.3333e-10
    assert [short(value) for value in (math.inf, -math.inf, math.nan)] == ["inf", "-inf", "nan"]
    assert json.dumps(shorts(torch.tensor([[1.0, float("inf")]])), allow_nan=False) == '[1.0, "inf"]'
