"""The smallest and the largest value of all batches that ran to their end."""

from __future__ import annotations

import pytest
import torch

from fxquant.calibration.joined_extremes import Extremes


def test_only_what_is_kept_counts():
    found, x = Extremes(), torch.tensor([[-1.0, 3.0], [0.0, 2.0]])
    assert found.ends.tolist() == [torch.inf, -torch.inf]
    assert found(x) is x
    found.keep()
    found(10 * x)
    found.forget()
    found.keep()
    found(torch.tensor(-2.0))
    found.keep()
    assert found.ends.tolist() == [-2, 3]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_values_that_are_not_finite_are_left_out(dtype):
    found = Extremes()
    for values in ([torch.nan, 1.0, torch.inf], [-torch.inf, -2.0], [torch.nan], []):
        found(torch.tensor(values, dtype=dtype))
        found.keep()
    assert found.ends.tolist() == [-2, 1]
    assert found.half().ends.dtype == torch.float32


def test_several_copies_are_pooled():
    seen = [Extremes() for _ in range(3)]
    for each, value in zip(seen[:2], (1.0, -5.0), strict=True):
        each(torch.tensor([value, 0.0]))
        each.keep()
    seen[2].pool([each.state_dict() for each in seen])
    assert seen[2].ends.tolist() == [-5, 1]


def test_a_state_from_before_they_were_kept_is_taken():
    assert Extremes().load_state_dict({}).missing_keys == []
