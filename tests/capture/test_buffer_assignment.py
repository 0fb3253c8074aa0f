"""Buffers that a forward assigns to: the graph keeps them from call to call as the module does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxquant.capture.buffer_assignment import BUFFER_STATE, assign_buffer
from fxquant.capture.tracing import trace
from fxquant.graph.query import reason_of


class Holder(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(3, 3)
        self.register_buffer("state", torch.zeros(2, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def counts(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    m.count += 1
    return x * m.count


def counts_by_method(m: Any, x: Tensor) -> Tensor:
    m.count = m.count.add_(1)
    return x * m.count


def replaces(m: Any, x: Tensor) -> Tensor:
    m.count = m.count + 1
    return x * m.count


def gives_the_old_one(m: Any, x: Tensor) -> Any:
    old = m.state
    m.state = x
    return old, m.state * 2


def averages(m: Any, x: Tensor) -> Tensor:
    m.state = m.state * 0.9 + x * 0.1
    return x - m.state


def recurs(m: Any, x: Tensor) -> Tensor:
    m.state = torch.tanh(m.layer(m.state) + x)
    return m.state


def grows(m: Any, x: Tensor) -> Tensor:
    m.state = torch.cat([m.state, x])
    return m.state.sum()


FORWARDS = (counts, counts_by_method, replaces, gives_the_old_one, averages, recurs, grows)
BATCHES = tuple(torch.full((2, 3), float(value)) for value in (1, 2, 4))


def outputs(model: nn.Module) -> str:
    with torch.no_grad():
        return str([model(x) for x in BATCHES])


@pytest.mark.parametrize("function", FORWARDS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("wrap", [lambda m: m, nn.Sequential], ids=["the model's own", "a submodule's"])
def test_calls_follow_each_other(function, wrap):
    model = wrap(Holder(function).eval())
    before = copy.deepcopy(model.state_dict())
    gm = trace(model, example_args=(BATCHES[0],))
    for state in (model.state_dict(), gm.state_dict()):
        assert all(torch.equal(state[name], value) for name, value in before.items() if name in state)
    assert outputs(gm) == outputs(model)
    kept = {name: value for name, value in model.state_dict().items() if name in gm.state_dict()}
    assert str(dict(gm.state_dict())) == str({name: kept[name] for name in gm.state_dict()})


def test_a_module_called_twice_reads_what_it_wrote():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Holder(replaces)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x))

    model = Twice().eval()
    gm = trace(model, example_args=(BATCHES[0],))
    assert outputs(gm) == outputs(model)


def reasons(function: Callable[..., Any]) -> dict[str, str | None]:
    gm = trace(Holder(function).eval(), example_args=(BATCHES[0],))
    return {node.name: reason_of(node) for node in gm.graph.nodes if reason_of(node)}


def test_what_would_round_the_state_anew_stays_float():
    assert set(reasons(averages)) == {"clone", "mul", "add"}
    assert set(reasons(averages).values()) == {BUFFER_STATE}
    assert reasons(recurs) == {}  # the state of a recurrent layer is an activation like others


def test_statistics_that_nothing_reads_stay_float():
    def measures(m: Any, x: Tensor) -> Tensor:
        m.state = x.abs() * 2
        return m.layer(x)

    assert set(reasons(measures)) == {"abs_1", "mul"}


def test_assigning_takes_any_shape_and_dtype():
    buffer = torch.zeros(2)
    for value in (torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.int64)):
        assign_buffer(buffer, value)
        assert torch.equal(buffer, value)
        assert buffer.dtype == value.dtype
        value += 1
        assert not torch.equal(buffer, value)
