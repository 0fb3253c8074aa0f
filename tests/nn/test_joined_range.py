"""The moving range of what is joined while a model trains."""

from __future__ import annotations

import torch

from fxquant.nn.joined_range import AVERAGING, JoinedRange


def test_the_first_call_counts_whole_and_later_ones_a_little():
    found, x = JoinedRange(), torch.tensor([-1.0, 3.0])
    assert found.ends.isnan().all()
    assert found(x) is x
    assert found.ends.tolist() == [-1, 3]
    found(2 * x)
    torch.testing.assert_close(found.ends, torch.tensor([-1 - AVERAGING, 3 + 3 * AVERAGING]))


def test_what_is_not_finite_or_empty_changes_nothing():
    found = JoinedRange()
    for values in ([], [torch.nan, 1.0], [torch.inf, 0.0]):
        found(torch.tensor(values))
    assert found.ends.isnan().all()


def test_gradients_pass_and_numbers_stay_float32():
    found, x = JoinedRange().half(), torch.randn(3, requires_grad=True)
    found(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3))
    assert found.ends.dtype == torch.float32


def test_several_processes_take_the_mean_of_those_that_saw_something():
    seen = [JoinedRange() for _ in range(3)]
    seen[0](torch.tensor([0.0, 2.0]))
    seen[2](torch.tensor([-4.0, 4.0]))
    seen[1].pool([each.state_dict() for each in seen])
    assert seen[1].ends.tolist() == [-2, 3]


def test_a_state_from_before_it_was_kept_is_taken():
    assert JoinedRange().load_state_dict({}).missing_keys == []
