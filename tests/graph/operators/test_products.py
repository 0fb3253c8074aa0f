"""The rows: tests/graph/operators/test_table.py and tests/cases/test_operator_fates.py hold them to torch."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor

from fxquant.graph.operators.canonical import canonical_target
from fxquant.graph.operators.products import PRODUCTS


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        (operator.imatmul, torch.matmul),
        (torch.linalg.matmul, torch.matmul),
        ("mm", torch.mm),
        (torch.ger, torch.outer),
        ("addmm_", torch.addmm),
        ("lerp_", torch.lerp),
        ("vdot", torch.vdot),
    ],
)
def test_spellings_have_one_target(spelling, target):
    assert canonical_target(spelling) is target


def test_no_target_stands_twice():
    targets = [row.target for row in PRODUCTS]
    assert len(targets) == len(set(targets))


def test_every_method_in_place_is_listed():
    """Of what adds to a tensor, torch has one."""
    for row in PRODUCTS:
        names = {f"{name}_" for name in row.methods if hasattr(Tensor, f"{name}_")}
        assert names == set(row.inplace_methods)
