"""What code may branch on: answers from shapes, and what comes of them."""

from __future__ import annotations

import operator

import pytest
import torch

from fxquant.capture.example import is_fixed

X = torch.arange(6.0).reshape(2, 3)
MASK = X > 2


@pytest.mark.parametrize(
    ("target", "args", "fixed"),
    [
        ("size", (X, 0), True),
        (getattr, (X, "shape"), True),
        (getattr, (X, "dtype"), True),
        (len, (X,), True),
        (torch.is_floating_point, (X,), True),
        (operator.add, (2, 3), True),
        (operator.getitem, (X.shape, -1), True),
        (operator.getitem, ({"x": X, "mask": None}, "mask"), True),
        ("reshape", (X, 3, 2), True),
        (torch.relu, (X,), True),
        (operator.getitem, (X, 0), True),
        (operator.getitem, (X, torch.tensor([0, 0])), True),
        (torch.where, (MASK, X, X), True),
        (torch.repeat_interleave, (X, 2), True),
        ("item", (X[0, 0],), False),
        ("tolist", (X,), False),
        (torch.equal, (X, X), False),
        (torch.is_nonzero, (X[0, 0],), False),
        ("nonzero", (X,), False),
        (torch.masked_select, (X, MASK), False),
        (torch.unique, (X,), False),
        (operator.getitem, (X, MASK), False),
        (operator.getitem, (X, (slice(None), MASK[0])), False),
        (torch.where, (MASK,), False),
        (torch.repeat_interleave, (X[0], torch.tensor([1, 2, 0])), False),
    ],
    ids=lambda value: getattr(value, "__name__", value) if not isinstance(value, tuple) else "",
)
def test_settled(target, args, fixed):
    call = getattr(torch.Tensor, target) if isinstance(target, str) else target
    assert is_fixed(target, args, {}, call(*args)) is fixed
