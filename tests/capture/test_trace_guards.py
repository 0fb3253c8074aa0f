"""Guards: silent where the answer is the example's, an error in the user's terms where it is not."""

from __future__ import annotations

import pytest
import torch

from fxquant.capture.trace_guards import require_answer, require_given, require_value
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
