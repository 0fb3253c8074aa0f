"""How hard the regularizer of roundings pulls at each step, which settings are taken, and how ties are broken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Generator

from fxquant.errors import InputError
from fxquant.fake_quantize import AdaRoundFakeQuantize
from fxquant.observers import MinMaxObserver
from fxquant.training.rounding_steps import Learning, begin_softly, error_unit, finish_hard


def test_values_that_are_all_alike_begin_apart() -> None:
    weight = torch.full((3, 4), 0.5)
    rounding = AdaRoundFakeQuantize(MinMaxObserver, bits=4, dtype=torch.int8, qscheme="per_tensor_symmetric")
    rounding(weight)
    rounding.disable_observer()
    rounding.initialize(weight)
    begin_softly([rounding], Generator().manual_seed(0))
    assert rounding.V.unique().numel() == weight.numel()
    assert rounding.is_on("use_soft_rounding")
    finish_hard([rounding])
    assert not rounding.is_on("use_soft_rounding")


def test_the_unit_of_the_error_is_what_rounding_costs() -> None:
    assert error_unit(100, 0.5) * 0.5 == pytest.approx(100 * 5e-5)
    assert error_unit(100, 0.0) == 1.0


def test_the_exponent_falls_after_the_warmup() -> None:
    learning = Learning(iterations=100, warmup=0.2, beta=(20, 2))
    exponents = [learning.exponent(step) for step in range(100)]
    assert exponents[:20] == [None] * 20
    assert exponents[20] == 20
    assert exponents[60] == pytest.approx(11)
    falling = [exponent for exponent in exponents if exponent is not None]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == pytest.approx(2, abs=0.01)
    assert Learning(warmup=1.0).exponent(999) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations is out of range"),
        ({"rows": 0}, "rows is out of range"),
        ({"learning_rate": math.nan}, "learning_rate is out of range"),
        ({"regularization": -1}, "regularization is out of range"),
        ({"warmup": 1.5}, "warmup is out of range"),
        ({"warmup": "long"}, "warmup is out of range"),
        ({"iterations": 1.5}, "iterations is out of range"),
        ({"rows": 64.0}, "rows is out of range"),
        ({"beta": (2, 20)}, "beta does not fall"),
        ({"beta": (math.inf, 2)}, "beta does not fall"),
        ({"beta": 20}, "beta does not fall"),
        ({"beta": ("20", "2")}, "beta does not fall"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Learning(**options)
