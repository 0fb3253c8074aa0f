"""Rows that look alike."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.graph.operators.families import ELEMENTARY, PRODUCTS, Operator, unary
from fxquant.graph.operators.spelling import canonical_target


def test_a_function_of_one_tensor_has_all_its_spellings():
    row = unary("neg", torch.negative)
    assert row.target is torch.neg
    assert row.functions == (torch.negative, operator.neg)
    assert (row.methods, row.inplace_methods, row.inplace_functions) == (("neg",), ("neg_",), (torch.neg_,))
    assert row.all_targets == (torch.neg, torch.negative, operator.neg, "neg", torch.neg_, "neg_")


def test_parameters_are_the_required_ones_and_then_those_with_defaults():
    row = Operator(target=F.threshold, required=("input", "threshold"), defaults={"value": 0.0}, fixed={"other": 1})
    assert row.parameters == ("input", "threshold", "value")


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        (nn.CELU, F.celu),
        (nn.Threshold, F.threshold),
        ("hardshrink", F.hardshrink),
        (torch.negative, torch.neg),
        ("clamp_min_", torch.clamp_min),
        (torch.prelu, F.prelu),
    ],
)
def test_spellings_have_one_target(spelling, target):
    assert canonical_target(spelling) is target


def test_no_target_stands_twice():
    targets = [row.target for row in ELEMENTARY]
    assert len(targets) == len(set(targets))


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
def test_spellings_of_a_product_have_one_target(spelling, target):
    assert canonical_target(spelling) is target


def test_no_product_stands_twice():
    targets = [row.target for row in PRODUCTS]
    assert len(targets) == len(set(targets))


def test_every_method_in_place_is_listed():
    """Of what adds to a tensor, torch has one."""
    for row in PRODUCTS:
        names = {f"{name}_" for name in row.methods if hasattr(Tensor, f"{name}_")}
        assert names == set(row.inplace_methods)
