"""Messages are read whole: a user sees what, at, got, expected, hint, in that order and only where known."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

import fxquant.errors as errors
from fxquant.errors import (
    FxQuantError,
    FxQuantWarning,
    SpecError,
    UnknownNameError,
    describe,
    error_context,
    is_library_file,
    layout,
    user_line,
)

ERRORS = sorted(
    (item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, FxQuantError)),
    key=lambda item: item.__name__,
)


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


@pytest.fixture
def relu():
    graph = symbolic_trace(Net()).graph
    return next(node for node in graph.nodes if node.op == "call_function")


def test_layout_with_every_fact():
    assert (
        layout("bits is out of range", at="the weight of conv1", got=17, expected="2 to 16", hint="use 8")
        == """\
bits is out of range
  at:       the weight of conv1
  got:      17
  expected: 2 to 16
  hint:     use 8"""
    )


def test_an_error_says_more_of_where_it_happened(relu):
    error = SpecError("no", got=3)
    assert str(error.within("batch 2")) == "batch 2: no\n  got:      3"
    assert type(error.within("batch 2")) is SpecError
    assert str(error.within(at=relu)) == f"no\n  at:       {relu.format_node()}\n  got:      3"
    there = SpecError("no", at="conv1")
    assert str(there.within(at=relu)) == "no\n  at:       conv1"
    copied = pickle.loads(pickle.dumps(error.within("batch 2")))
    assert str(copied.within("epoch 1")) == "epoch 1: batch 2: no\n  got:      3"


def test_errors_that_leave_a_body_say_where_it_was():
    with pytest.raises(SpecError) as caught, error_context("batch 2"):
        raise SpecError("no") from ValueError("why")
    assert str(caught.value) == "batch 2: no"
    assert str(caught.value.__cause__) == "why"
    with pytest.raises(ValueError, match=r"^other$"), error_context("batch 2"):
        raise ValueError("other")


def test_layout_leaves_out_what_is_not_known():
    assert layout("bits is out of range") == "bits is out of range"


@pytest.mark.parametrize("got", [0, False, "", ()])
def test_a_falsy_value_is_a_fact(got):
    assert layout("not that", got=got) == f"not that\n  got:      {got}"


def test_a_node_is_shown_as_fx_prints_it_with_the_users_line(relu):
    relu.stack_trace = (
        '  File "/home/me/train.py", line 3, in <module>\n    main()\n'
        '  File "/home/me/net.py", line 13, in forward\n    return torch.relu(x)\n'
        f'  File "{torch.__file__}", line 5, in relu\n    ...\n'
    )
    assert str(FxQuantError("this cannot be lowered", at=relu, got="int3")) == (
        "this cannot be lowered\n"
        "  at:       %relu : [num_users=1] = call_function[target=torch.relu](args = (%x,), kwargs = {}), "
        "from /home/me/net.py:13\n"
        "  got:      int3"
    )


def test_a_node_without_a_line_is_shown_alone(relu):
    relu.stack_trace = None
    assert user_line(relu) == ""
    assert describe(relu) == "%relu : [num_users=1] = call_function[target=torch.relu](args = (%x,), kwargs = {})"


def test_lines_of_torch_fxquant_and_generated_code_are_not_the_users(relu):
    relu.stack_trace = "".join(
        f'  File "{path}", line 1, in f\n' for path in (torch.nn.__file__, errors.__file__, "<eval_with_key>.0")
    )
    assert user_line(relu) == ""
    assert not is_library_file(__file__)


def test_the_examples_folder_next_to_the_package_is_the_users():
    assert not is_library_file(errors.__file__.replace("fxquant/errors.py", "fxquant_user/net.py"))


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_shows_its_layout_and_can_be_caught_as_one(kind):
    with pytest.raises(FxQuantError) as caught:
        raise kind("what happened", got=3, hint="do this")
    assert str(caught.value) == "what happened\n  got:      3\n  hint:     do this"


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_every_error_survives_copies_and_processes(kind, travel):
    error = travel(kind("what happened", got=3))
    assert type(error) is kind
    assert str(error) == "what happened\n  got:      3"


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind is not FxQuantError])
def test_every_error_is_also_the_builtin_that_it_specializes(kind):
    assert issubclass(kind, (ValueError, LookupError, TypeError, RuntimeError, AttributeError))
    assert kind.__doc__


def test_an_unknown_name_is_a_key_error_whose_message_is_no_repr():
    error = UnknownNameError("unknown pattern", got=repr("con"))
    assert isinstance(error, KeyError)
    assert str(error) == "unknown pattern\n  got:      'con'"


def test_warnings_can_be_silenced_as_one():
    assert issubclass(FxQuantWarning, UserWarning)
