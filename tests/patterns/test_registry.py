from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.errors import DuplicateNameError, SpecError, UnknownNameError
from fxquant.patterns.pattern import Op, Pattern, op, tensor
from fxquant.patterns.registry import (
    DEFAULT_PATTERNS,
    REGISTERED,
    known_patterns,
    module_types,
    register_pattern,
    unregister_pattern,
)

GLU = Pattern("glu", op(nn.GLU)(tensor("x")))


class MyConv(nn.Conv2d):
    """A user's own."""


@pytest.fixture(autouse=True)
def _forget():
    """Whatever a test registers is gone after it."""
    yield
    for name in list(REGISTERED):
        unregister_pattern(name)


def handler(**methods):
    usual = {"observe": lambda self, node, env: None, "quantize": lambda self, quantizer, node, load_arg: node}
    return type("MyHandler", (), {**usual, **methods})


def test_the_names_of_the_default_patterns_are_unique():
    names = [pattern.name for pattern in DEFAULT_PATTERNS]
    assert len(set(names)) == len(names)


def test_the_module_types_are_those_of_whole_trees():
    tree = op(F.relu)(op(nn.Conv1d)(op("neg", MyConv)(tensor("x"))))
    assert set(module_types([GLU, Pattern("deep", tree)])) == {nn.Conv1d, MyConv}  # GLU has a function's name


def test_registered_patterns_come_first():
    assert known_patterns() == DEFAULT_PATTERNS
    assert register_pattern(GLU) is GLU
    assert known_patterns() == (GLU, *DEFAULT_PATTERNS)
    unregister_pattern("glu")
    assert known_patterns() == DEFAULT_PATTERNS


def test_a_pattern_registered_twice():
    register_pattern(GLU)
    with pytest.raises(DuplicateNameError) as caught:
        register_pattern(GLU)
    assert str(caught.value).startswith("pattern 'glu' is registered already\n  got:      Pattern(name='glu',")
    assert "\n  expected: a new name; 'glu' is Pattern(name='glu'," in str(caught.value)
    assert list(REGISTERED) == ["glu"]


def test_the_same_tree_under_another_name():
    register_pattern(GLU)
    with pytest.raises(DuplicateNameError) as caught:
        register_pattern(Pattern("gated", op(nn.GLU)(tensor("x"))))
    assert (
        str(caught.value)
        == """\
pattern 'gated' has the same tree as the registered pattern 'glu'
  got:      glu(x)
  hint:     unregister_pattern('glu') first, if it should be replaced"""
    )
    assert list(REGISTERED) == ["glu"]


def test_the_name_of_a_default_pattern():
    """Built-in patterns that come later break no registration: each has its own rule."""
    mine = Pattern("conv", op(MyConv)(tensor("x")), weight=None)
    registered = register_pattern(mine)
    assert registered.name == "own.conv"
    assert list(REGISTERED) == ["own.conv"]
    assert known_patterns()[0] is registered
    unregister_pattern("conv")
    assert not REGISTERED


def test_the_name_of_a_default_pattern_in_a_list_of_ones_own():
    layer = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Softsign(), nn.Conv2d(3, 3, 1)).eval()
    mine = Pattern("relu", op(nn.Softsign)(tensor("x")), lower={"cpu": lambda unit: nn.Softsign()})
    quantizer = fxq.prepare(layer, torch.rand(1, 3, 4, 4), patterns=(mine, *DEFAULT_PATTERNS))
    assert [unit.pattern for unit in quantizer.plan.units] == ["conv", "own.relu", "conv"]


def test_the_tree_of_a_default_pattern_can_be_taken_over():
    mine = Pattern("my_linear", op(nn.Linear)(tensor("x")).named("linear"), weight="linear")
    register_pattern(mine)
    assert known_patterns()[0] is mine


def test_forgetting_what_is_not_registered():
    register_pattern(GLU)
    with pytest.raises(UnknownNameError) as caught:
        unregister_pattern("gul")
    assert (
        str(caught.value)
        == """\
unknown pattern
  got:      'gul'
  expected: glu
  hint:     did you mean 'glu'?"""
    )


@pytest.mark.parametrize(
    ("target", "tree", "name"),
    [
        (nn.GLU, Op((F.glu,)), "MyHandler[glu]"),
        (torch.relu, Op((F.relu,)), "MyHandler[relu]"),
        ("argmax", Op(("argmax",)), "MyHandler[argmax]"),
        ((MyConv,), Op((MyConv,)), "MyHandler[MyConv]"),
        (
            (nn.ReLU, (nn.BatchNorm2d, MyConv)),
            Op((F.relu,), (Op((nn.BatchNorm2d,), (Op((MyConv,)),)),)),
            "MyHandler[relu(BatchNorm2d(MyConv))]",
        ),
        (
            (torch.add, MyConv, (nn.ReLU, nn.Linear)),
            Op((torch.add,), (Op((MyConv,)), Op((F.relu,), (Op((nn.Linear,)),)))),
            "MyHandler[add(MyConv, relu(Linear))]",
        ),
    ],
)
def test_a_handler_for_a_target_or_a_tuple_with_the_output_first(target, tree, name):
    kind = handler()
    assert register_pattern(target)(kind) is kind
    assert known_patterns()[0] == Pattern(name, tree, inputs=(), handler=kind)


def test_a_handler_as_decorator():
    @register_pattern((nn.ReLU, MyConv))
    class Mine:
        def observe(self, node, env):
            """See nothing."""

        def quantize(self, quantizer, node, load_arg):
            return NotImplemented

    assert REGISTERED["Mine[relu(MyConv)]"].handler is Mine


def test_a_second_handler_of_the_same_tree():
    register_pattern(torch.relu)(handler())
    with pytest.raises(DuplicateNameError) as caught:
        register_pattern(nn.ReLU)(type("Other", (handler(),), {}))
    assert (
        str(caught.value)
        == """\
pattern 'Other[relu]' has the same tree as the registered pattern 'MyHandler[relu]'
  got:      relu
  hint:     unregister_pattern('MyHandler[relu]') first, if it should be replaced"""
    )


@pytest.mark.parametrize("method", ["observe", "quantize"])
def test_a_handler_without_its_methods(method):
    with pytest.raises(SpecError) as caught:
        register_pattern(nn.ReLU)(handler(**{method: None}))
    assert str(caught.value) == (
        f"MyHandler cannot handle a pattern: it has no method {method!r}\n"
        "  expected: observe(self, node, env) and quantize(self, quantizer, node, load_arg)"
    )
    assert not REGISTERED


@pytest.mark.parametrize(
    ("pattern", "got"), [(3, "3"), ((), "()"), ((nn.ReLU, None), "None"), (((nn.ReLU,), nn.Linear), f"({nn.ReLU},)")]
)
def test_what_is_no_target(pattern, got):
    with pytest.raises(SpecError) as caught:
        register_pattern(pattern)
    assert str(caught.value) == (
        f"a pattern is made of targets\n  got:      {got}\n  expected: a module type, a function or a method name"
    )
