"""Tensors that a forward makes of numbers alone: read, changed, read again, and written to with traced values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import TracingError
from fxquant.graph.made import WrittenTensor
from fxquant.graph.tracing import trace

KEPT = torch.zeros(6)


def read_before_a_change(x: Tensor) -> Tensor:
    made = torch.zeros(6)
    end = made[2:]
    y = x + made
    end += 1
    return y * made


def added_to(x: Tensor) -> Tensor:
    made = torch.zeros(6)
    made += x.mean(0)
    return x + made


def added_to_as_a_statement(x: Tensor) -> Tensor:
    made = torch.zeros(6)
    made.add_(x.sum(0))
    return x * made


def written_to_and_read_by_numbers(x: Tensor) -> Tensor:
    made = torch.ones(4, 6)
    made[:, :3] = x[:, :3]
    return made * 2


def written_to_and_read_in_many_ways(x: Tensor) -> Tensor:
    made = torch.zeros(4, 6)
    made[:, 2:] = x[:, 2:]
    return torch.cat([made, 1 - made]).sum(0) + made.mT[:, 0] + made[1] + made.mean() + made.shape[0]


def written_to_between_changes_by_numbers(x: Tensor) -> Tensor:
    made = torch.full((4, 6), 1.0)
    for i in range(3):
        made[:, i] = x[:, i]
        made[:, i + 3] *= 2 + i
    return made


def mask_written_to(x: Tensor) -> Tensor:
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[:, :3] = x[:, :3] > 0
    return x.masked_fill(~mask, 0.0)


def from_a_global(x: Tensor) -> Tensor:
    return x + KEPT.copy_(x[0])


FORWARDS = (
    read_before_a_change,
    added_to,
    added_to_as_a_statement,
    written_to_and_read_by_numbers,
    written_to_and_read_in_many_ways,
    written_to_between_changes_by_numbers,
    mask_written_to,
    from_a_global,
)


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_every_call_computes_what_the_forward_does(forward):
    gm = trace(Calls(forward), example_args=(torch.randn(4, 6),))
    for _ in range(3):
        x = torch.randn(4, 6)
        assert torch.equal(gm(x), forward(x))


def test_a_tensor_is_a_plain_one_when_the_trace_ends():
    trace(Calls(from_a_global), example_args=(torch.randn(4, 6),))
    assert type(KEPT) is Tensor
    assert not vars(KEPT)
    assert not isinstance(KEPT, WrittenTensor)


def test_what_is_written_to_through_a_view_and_then_read_is_refused():
    def forward(x: Tensor) -> Tensor:
        made = torch.zeros(6)
        made[2:].add_(x[0, 2:])
        return x * made

    with pytest.raises(TracingError, match="is read after a view of it was written to; new_zeros"):
        trace(Calls(forward), example_args=(torch.randn(4, 6),))
