"""Rows that look alike."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F

from fxquant.graph.operators.row import Operator, unary


def test_a_function_of_one_tensor_has_all_its_spellings():
    row = unary("neg", torch.negative)
    assert row.target is torch.neg
    assert row.functions == (torch.negative, operator.neg)
    assert (row.methods, row.inplace_methods, row.inplace_functions) == (("neg",), ("neg_",), (torch.neg_,))
    assert row.all_targets == (torch.neg, torch.negative, operator.neg, "neg", torch.neg_, "neg_")


def test_parameters_are_the_required_ones_and_then_those_with_defaults():
    row = Operator(target=F.threshold, required=("input", "threshold"), defaults={"value": 0.0}, fixed={"other": 1})
    assert row.parameters == ("input", "threshold", "value")
