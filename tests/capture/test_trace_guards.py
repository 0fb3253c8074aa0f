"""Guards: silent where the answer is the example's, an error in the user's terms where it is not."""

from __future__ import annotations

import operator
import sys

import pytest
import torch

from fxquant.capture.trace_guards import (
    instruction,
    is_fixed,
    require_answer,
    require_exported,
    require_given,
    require_value,
    user_line,
    user_stack,
)
from fxquant.errors import InputError


def test_a_fixed_argument_is_checked_at_run_time():
    assert require_value(True, True, "flag") is None
    for wrong in (False, 1, None):
        with pytest.raises(InputError) as caught:
            require_value(wrong, True, "flag")
        assert str(caught.value) == (
            "the argument 'flag' was fixed when the model was prepared\n"
            f"  got:      {wrong!r}\n"
            "  expected: True\n"
            "  hint:     give 'flag' that value in the example inputs, and prepare again"
        )


@pytest.mark.parametrize(("value", "answer"), [(3, 3), (3, True), (0, False), (0.5, 0.5), (torch.Size([1]), True)])
def test_the_same_answer(value, answer):
    assert require_answer(value, answer, "") is None


def test_another_answer():
    with pytest.raises(InputError) as caught:
        require_answer(0, True, "net.py:3: if x.size(0) % 2:")
    assert str(caught.value) == (
        "the model was prepared for inputs of other sizes: on these it would compute something else\n"
        "  at:       net.py:3: if x.size(0) % 2:\n"
        "  got:      False\n"
        "  expected: True\n"
        "  hint:     prepare it again with example inputs of this size"
    )
    with pytest.raises(InputError, match="got:      4\n  expected: 3"):
        require_answer(4, 3, "")


def test_a_size_of_an_exported_program():
    assert require_exported(4, 4, "x.size()[0] == 4") is None
    assert require_exported(2, True, "x.size()[0] % 2") is None
    with pytest.raises(InputError) as caught:
        require_exported(3, 4, "x.size()[0] == 4")
    assert str(caught.value) == (
        "the program was exported for inputs of other sizes: on these it would compute something else\n"
        "  at:       x.size()[0] == 4\n"
        "  got:      3\n"
        "  expected: 4\n"
        "  hint:     give example inputs of this size, or torch.export dynamic_shapes; or leaf_modules=[...]"
    )


def test_an_argument_that_was_given_must_be_given():
    assert require_given(torch.ones(2), "float32[2]", "mask") is None
    with pytest.raises(InputError) as caught:
        require_given(None, "float32[2]", "mask")
    assert str(caught.value) == (
        "the argument 'mask' was given when the model was prepared, and is left out now\n"
        "  got:      None\n"
        "  expected: float32[2]\n"
        "  hint:     give 'mask', or leave it out of the example inputs too, and prepare again"
    )


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


def innermost():
    frame = sys._getframe()
    return user_stack(frame, outermost.__code__), user_line(frame, outermost.__code__), instruction(frame)


def middle():
    return innermost()


def outermost():
    return middle()


def test_lines_of_the_user():
    stack, line, where = outermost()
    assert [part.rpartition(" in ")[2] for part in stack.splitlines() if "File" in part] == ["middle", "innermost"]
    assert line.startswith(f"{__file__}:")
    assert "return user_stack(frame" in line
    assert where[0] != 0
    assert where[1] > 0


def test_without_a_frame():
    assert user_stack(None, outermost.__code__) == user_line(None, outermost.__code__) == ""
    assert instruction(None) == (0, 0)
