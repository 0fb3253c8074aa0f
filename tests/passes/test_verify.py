from __future__ import annotations

import pytest
import torch

from fxquant.errors import PassError
from fxquant.passes.verify import TOLERANCE, compare, difference

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (torch.tensor([2.0, -4.0]), torch.tensor([2.0, -4.0]), 0.0),
        (torch.tensor([2.0, -4.0]), torch.tensor([2.0, -3.0]), 0.25),
        (torch.tensor([INF, NAN, 1.0]), torch.tensor([INF, NAN, 1.5]), 0.5),
        (torch.tensor([1.0]), torch.tensor([NAN]), INF),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), INF),
        (torch.tensor([1.0]), torch.tensor([1]), INF),
        (torch.tensor([3, 4]), torch.tensor([3, 2]), 0.5),
        (torch.zeros(0), torch.zeros(0), 0.0),
        ({"a": (1, None)}, {"a": (1, None)}, 0.0),
        ({"a": 1}, {"a": 2}, INF),
        ({"a": 1}, {"b": 1}, INF),
    ],
    ids=range(11),
)
def test_difference(before, after, expected):
    assert difference(before, after) == expected


def test_compare_allows_roundings_and_names_the_first_difference():
    x, y = torch.ones(3), torch.full((3,), 2.0)
    compare("fold", {"a": x, "output": x}, {"a": y, "output": x * (1 + TOLERANCE / 2)})  # inner values may differ
    with pytest.raises(PassError, match="at:       b, the first node whose value differs"):
        compare("fold", {"a": x, "b": x, "output": x}, {"a": x, "new": y, "b": y, "output": y})
