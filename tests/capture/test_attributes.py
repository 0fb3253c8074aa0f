"""Attributes that a forward changes: found whatever they are, and put back."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, Proxy

from fxquant.capture.attributes import Attributes, Snapshot, StateAssignmentError, holds_proxy, no_traced_attributes
from fxquant.capture.tracing import trace


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
