from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.errors import SpecError
from fxquant.patterns.pattern import Bounded, Input, Op, Output, Pattern, op, tensor, tensors
from fxquant.plan.spec import QScheme

CONV = op(nn.Conv2d)(tensor("x")).named("conv")


def test_a_tree_reads_like_the_call():
    tree = op(torch.add, commutative=True)(op(nn.Conv2d)(tensor("x")).named("conv"), tensor("residual")).named("add")
    assert tree == Op(
        (torch.add,),
        (Op((nn.Conv2d,), (Input("x"),), name="conv"), Input("residual")),
        name="add",
        commutative=True,
    )


@pytest.mark.parametrize("spelling", [nn.ReLU, torch.relu, F.relu, "relu", "relu_", torch.relu_])
def test_any_spelling_stands_for_the_canonical_one(spelling):
    assert op(spelling)() == Op((F.relu,))


def test_spellings_of_one_operator_are_one_target():
    assert op(nn.ReLU, F.relu, nn.Hardtanh)(tensor("x")).targets == (F.relu, F.hardtanh)


def test_what_stays_a_module_keeps_its_type():
    assert op(nn.Conv2d, nn.BatchNorm2d)().targets == (nn.Conv2d, nn.BatchNorm2d)


@pytest.mark.parametrize(
    ("tree", "size", "targets", "captures"),
    [
        (op(nn.Linear)(tensor("x")), 1, (nn.Linear,), ("x",)),
        (op(F.relu)(CONV).named("act"), 2, (F.relu, nn.Conv2d), ("x", "conv", "act")),
        (
            op(torch.add)(CONV, op(F.relu, F.relu6)(tensor("b"))),
            3,
            (torch.add, nn.Conv2d, F.relu, F.relu6),
            ("x", "conv", "b"),
        ),
        (op(torch.cat)(tensors("x")).named("cat"), 1, (torch.cat,), ("x", "cat")),
        (op(F.relu)(), 1, (F.relu,), ()),
    ],
)
def test_what_a_tree_knows_of_itself(tree, size, targets, captures):
    assert (tree.size, tree.all_targets, tree.captures) == (size, targets, captures)


def test_a_name_is_text():
    with pytest.raises(SpecError, match="the name of a pattern is no text"):
        Pattern(5, op(torch.add)(tensor("x"), tensor("y")))  # type: ignore[arg-type]


@pytest.mark.parametrize("args", [(), (tensor("x"),)])
def test_commutative_needs_something_to_swap(args):
    with pytest.raises(SpecError) as caught:
        op(torch.add, commutative=True)(*args)
    assert str(caught.value) == (
        "add is called commutative, but has nothing to swap\n"
        f"  got:      {len(args)} arguments\n"
        '  expected: two, as in op(torch.add, commutative=True)(tensor("a"), tensor("b"))'
    )


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"inputs": ("x", "residual")}, "residual"),
        ({"weight": "linear"}, "linear"),
        ({"inputs": ("y",), "weight": "w"}, "y, w"),
    ],
)
def test_a_pattern_names_only_what_its_tree_captures(fields, missing):
    with pytest.raises(SpecError) as caught:
        Pattern("mine", CONV, **fields)
    assert str(caught.value) == (
        "pattern 'mine' names what its tree does not capture\n"
        f"  got:      {missing}\n"
        "  expected: one of x, conv\n"
        "  hint:     tensor('x') captures an input, op(...)(...).named('conv') an operator"
    )


@pytest.mark.parametrize(
    ("bounds", "scheme", "expected"),
    [
        (Bounded(0.0, 1.0), QScheme(signed=False), (1 / 256, 0)),
        (Bounded(-1.0, 1.0), QScheme(signed=False), (2 / 256, 128)),
        (Bounded(0.0, 1.0), QScheme(), (1 / 256, -128)),
        (Bounded(-1.0, 1.0), QScheme(), (2 / 256, 0)),
        (Bounded(0.0, 1.0), QScheme(symmetric=True), (2 / 256, 0)),
        (Bounded(0.0, 1.0), QScheme(signed=False, symmetric=True), (2 / 256, 128)),
        (Bounded(0.0, 1.0), QScheme(bits=4, signed=False), (1 / 16, 0)),
        (Bounded(-1.0, 1.0), QScheme(signed=False, limits=(0, 127)), (2 / 128, 64)),
    ],
)
def test_bounds_that_are_known_are_a_grid(bounds, scheme, expected):
    qparams = bounds.qparams(scheme)
    assert (qparams.scale.item(), qparams.zero_point.item()) == expected
    assert qparams.scheme is scheme


def test_a_pattern_is_a_table_row():
    pattern = Pattern("conv", CONV, weight="conv")
    assert (pattern.inputs, pattern.weight_axis, pattern.output) == (("x",), 0, Output.OBSERVED)
    assert (pattern.check, pattern.handler, dict(pattern.lower)) == (None, None, {})
    assert replace(pattern, name="conv") == pattern
    with pytest.raises(FrozenInstanceError):
        pattern.name = "other"  # type: ignore[misc]
