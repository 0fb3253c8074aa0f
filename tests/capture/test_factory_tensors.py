"""Tensors that a forward makes of numbers alone: read, changed, read again, and written to with traced values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.factory_tensors import FACTORIES, WrittenTensor
from fxquant.capture.tracing import trace
from fxquant.errors import FxQuantWarning, TracingError
from fxquant.graph.query import VALUE, TensorInfo

KEPT = torch.zeros(6)
CLOSE = 0.03
"""Of the norm: what 8 bits may cost one layer; a change that is lost costs half of it or more."""


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


def written_to_through_a_view(x: Tensor) -> Tensor:
    made = torch.zeros(6)
    made[2:].add_(x[0, 2:])
    return x * made


def a_view_from_before_changed_by_numbers_later(x: Tensor) -> Tensor:
    made = torch.zeros(4, 6)
    row = made[1]
    made[1] = x[1]
    row *= 2
    return made + row


def halves_filled_one_by_one(x: Tensor) -> Tensor:
    made = torch.ones(x.shape[0], 6)
    left, right = made.chunk(2, 1)
    left.copy_(x[:, :3])
    right.mul_(x[:, 3:])
    return made


def written_to_in_one_dimension(x: Tensor) -> Tensor:
    made = torch.full((4, 6), 0.5)
    made.view(-1)[::2] = x.reshape(-1)[::2]
    return made * 2


def written_to_by_out(x: Tensor) -> Tensor:
    made = torch.empty(4, 6)
    torch.add(x, 1, out=made)
    return made


FORWARDS = (
    read_before_a_change,
    added_to,
    added_to_as_a_statement,
    written_to_and_read_by_numbers,
    written_to_and_read_in_many_ways,
    written_to_between_changes_by_numbers,
    mask_written_to,
    from_a_global,
    written_to_through_a_view,
    a_view_from_before_changed_by_numbers_later,
    halves_filled_one_by_one,
    written_to_in_one_dimension,
    written_to_by_out,
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


def test_a_view_of_what_no_function_of_torch_made_is_refused():
    def forward(x: Tensor) -> Tensor:
        kept = KEPT.clone()
        kept[2:].add_(x[0, 2:])
        return x * kept

    with pytest.raises(TracingError, match="is read after a view of it was written to; new_zeros") as caught:
        trace(Calls(forward), example_args=(torch.randn(4, 6),))
    assert f"at:       {__file__}:" in str(caught.value)


def test_the_smallest_submodule_is_kept_where_nothing_else_helps():
    def forward(x: Tensor) -> Tensor:
        kept = KEPT.clone()
        kept[2:].add_(x[0, 2:])
        return x * kept

    model = nn.Sequential(nn.Linear(6, 6), Calls(forward)).eval().requires_grad_(False)
    with pytest.warns(FxQuantWarning, match="cannot trace the submodule '1'"):
        gm = trace(model, example_args=(torch.randn(4, 6),), keep_untraceable=True)
    x = torch.randn(4, 6)
    assert torch.equal(gm(x), model(x))


def test_constants_stay_constants_where_no_view_is_written_to():
    gm = trace(Calls(added_to), example_args=(torch.randn(4, 6),))
    assert not any(node.target in FACTORIES for node in gm.graph.nodes)
    gm = trace(Calls(written_to_through_a_view), example_args=(torch.randn(4, 6),))
    assert [node.target for node in gm.graph.nodes if node.target in FACTORIES] == [torch.zeros]


def test_a_tensor_that_is_seen_in_all_its_views_stays_float():
    model = nn.Sequential(nn.Linear(6, 6), Calls(a_view_from_before_changed_by_numbers_later)).eval()
    batches = [torch.randn(4, 6) for _ in range(3)]
    prepared = fxq.calibrate(fxq.prepare(model, batches[0]), batches, progress=False)
    with torch.no_grad():
        assert all(torch.equal(prepared(x), model(x)) for x in batches)
        for to in ("int8", "fake_quant", "reference"):
            converted = fxq.convert(prepared, to=to)
            assert all((converted(x) - model(x)).norm() < CLOSE * model(x).norm() for x in batches)


def test_what_is_known_of_a_tensor_that_was_written_to_is_plain_data():
    index = torch.tensor([0, 1, 0, 2])
    gm = trace(Calls(lambda x: torch.zeros(3, 6).index_add_(0, index, x)), example_args=(torch.randn(4, 6),))
    assert gm.graph.output_node().meta[VALUE] == TensorInfo((3, 6), torch.float32, torch.device("cpu"), True)
    assert not any(node.target == "is_contiguous" for node in gm.graph.nodes)
