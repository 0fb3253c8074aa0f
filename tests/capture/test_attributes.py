"""Attributes that a forward changes: found whatever they are, and put back."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, Proxy

from fxquant.capture.attributes import (
    BUFFER_STATE,
    Attributes,
    Snapshot,
    StateAssignmentError,
    assign_buffer,
    holds_proxy,
    no_traced_attributes,
)
from fxquant.capture.tracing import trace
from fxquant.graph.query import reason_of


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.table, self.seen = 0, torch.zeros(2), [1, {"a": [2]}]
        self.queue, self.tags, self.nothing = deque([1, 2], maxlen=2), {"x"}, None
        self.register_buffer("cache", None)


def rebinds(m: Any) -> None:
    m.count += 1


def appends_deep_inside(m: Any) -> None:
    m.seen[1]["a"].append(3)


def adds_to_a_tensor(m: Any) -> None:
    m.table += 1


def replaces_a_tensor(m: Any) -> None:
    m.table = torch.ones(2)


def pushes(m: Any) -> None:
    m.queue.append(3)


def adds_to_a_set(m: Any) -> None:
    m.tags.add("y")


def replaces_none(m: Any) -> None:
    m.nothing = "something"


def makes(m: Any) -> None:
    m.new = 1


CHANGES = {
    rebinds: "count",
    appends_deep_inside: "seen",
    adds_to_a_tensor: "table",
    replaces_a_tensor: "table",
    pushes: "queue",
    adds_to_a_set: "tags",
    replaces_none: "nothing",
    makes: "new",
}


def state(module: nn.Module) -> str:
    return str({name: value for name, value in sorted(vars(module).items()) if not name.startswith("_")})


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_found_and_put_back(change):
    model = nn.Sequential(Inner(), Inner())
    before, objects = state(model[1]), dict(vars(model[1]))
    attributes = Attributes(model)
    assert attributes.changes() == []
    change(model[1])
    (found,) = attributes.changes()
    assert (found.path, found.name, found.module) == ("1", CHANGES[change], model[1])
    assert found.was_tensor is (found.name == "table")
    attributes.put_back()
    assert state(model[1]) == before
    assert all(vars(model[1])[name] is value for name, value in objects.items())


def test_equal_numbers_and_what_the_tracer_adds_are_no_change():
    model = Inner()
    attributes = Attributes(model)
    model.count, model.tags = 0, {"x"}
    model._constant = torch.zeros(1)
    assert attributes.changes(["_constant", "count"]) == []
    attributes.put_back(["_constant"])
    assert hasattr(model, "_constant")
    attributes.put_back()
    assert not hasattr(model, "_constant")


def test_a_buffer_that_was_replaced():
    model = Inner()
    attributes = Attributes(model)
    model.cache = torch.ones(1)
    assert [change.name for change in attributes.changes()] == ["cache"]


def test_proxies_are_found_however_deep():
    proxy = Proxy(Graph().placeholder("x"))
    assert holds_proxy([1, {"a": (proxy,)}])
    assert not holds_proxy([1, {"a": (2,)}])


def test_a_module_that_keeps_a_traced_value_gets_its_state_back():
    module = nn.Linear(2, 2)
    weight, proxy = module.weight, Proxy(Graph().placeholder("x"))
    with pytest.raises(StateAssignmentError) as caught:
        keep(module, proxy)
    assert "self." in str(caught.value)
    assert module.weight is weight
    assert not hasattr(module, "seen")


def keep(module: nn.Module, proxy: Proxy) -> None:
    with no_traced_attributes(module):
        module._parameters["weight"] = proxy
        module.seen = proxy


def cyclic(tail: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"tail": tail}
    made["self"], made["pair"] = made, (made, tail)
    return made


def test_what_holds_itself_is_looked_at_once():
    model = Inner()
    model.meta = kept = cyclic([1])
    attributes = Attributes(model)
    assert attributes.changes() == []
    model.meta = cyclic([1])
    assert attributes.changes() == []
    assert not holds_proxy(model.meta)
    model.meta = cyclic([2])
    assert [change.name for change in attributes.changes()] == ["meta"]
    model.meta = kept
    kept["tail"].append(Proxy(Graph().placeholder("x")))
    assert holds_proxy(kept)
    attributes.put_back()
    assert model.meta is kept
    assert kept["tail"] == [1]
    assert kept["self"] is kept


def test_a_model_with_an_attribute_that_holds_itself_is_traced():
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.rand(1, 2)
    model.meta = cyclic([1])
    assert torch.equal(trace(model, example_args=(x,))(x), model(x))


def test_plain_items_are_no_snapshots_of_their_own():
    snapshot = Snapshot({index: str(index) for index in range(100)})
    assert len(snapshot._held) == 1


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
