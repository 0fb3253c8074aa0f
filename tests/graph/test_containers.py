"""Containers of the user's classes come back from every form of a model as what they are in float."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning, TracingError
from fxquant.graph.containers import default_dict, is_of_own_class, maker_of


class Named(dict[str, Tensor]):
    """Values by attribute."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


class Row(list[Tensor]):
    pass


class Pair(tuple[Tensor, ...]):
    pass


class Both(NamedTuple):
    first: Tensor
    second: Tensor | None = None


class Both2(Both):
    __slots__ = ()

    def total(self) -> Tensor:
        return self.first.sum()


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None
    steps: int = 3


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Counted(dict[str, Tensor]):
    """A class that makes no instance of items."""

    def __init__(self, *, first: Tensor) -> None:
        super().__init__(first=first)


class Net(nn.Module):
    def __init__(self, gives: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.gives = gives

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.gives(self.last(hidden), hidden)


GIVEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "defaultdict": lambda y, h: defaultdict(list, {"y": [y], "h": [h]}),
    "defaultdict without factory": lambda y, h: defaultdict(None, y=y),
    "OrderedDict": lambda y, h: OrderedDict(y=y, h=h),
    "UserDict": lambda y, h: UserDict({"y": y, "h": h}),
    "UserList": lambda y, h: UserList([y, h]),
    "deque": lambda y, h: deque([y, h]),
    "dict subclass": lambda y, h: Named(y=y, h=h),
    "list subclass": lambda y, h: Row([y, h]),
    "tuple subclass": lambda y, h: Pair([y, h]),
    "named tuple": lambda y, h: Both(y),
    "named tuple subclass": lambda y, h: Both2(y, h),
    "dataclass": lambda y, h: Output(y),
    "dataclass, all": lambda y, h: Output(y, h, 5),
    "keys of an Enum": lambda y, h: {Level.LOW: y, Level.HIGH: h},
    "nested": lambda y, h: {"a": OrderedDict(b=Both(y, h)), "c": [Pair([y]), None, 3, "s"], "d": Output(h)},
}


def parts(value: Any) -> list[Any]:
    """Classes and keys in their order, and tensors."""
    if isinstance(value, (dict, UserDict)):
        return [type(value), *value, *(part for item in value.values() for part in parts(item))]
    if isinstance(value, (tuple, list, UserList, deque)):
        return [type(value), *(part for item in value for part in parts(item))]
    if isinstance(value, Output):
        return [Output, *(part for item in (value.logits, value.hidden, value.steps) for part in parts(item))]
    return [value]


def same(found: Any, wanted: Any, *, values: bool) -> bool:
    pairs = list(zip(parts(found), parts(wanted), strict=True))
    tensors = [(a, b) for a, b in pairs if isinstance(a, Tensor)]
    assert tensors
    assert all(torch.equal(a, b) if values else a.shape == b.shape for a, b in tensors)
    return all(a == b for a, b in pairs if not isinstance(a, Tensor))


@pytest.mark.parametrize("name", GIVEN)
def test_every_form_gives_the_container_of_the_float_model(name):
    torch.manual_seed(0)
    model = Net(GIVEN[name]).eval()
    prepared = fxq.calibrate(
        fxq.prepare(model, torch.randn(3, 8)), [torch.randn(3, 8) for _ in range(2)], progress=False
    )
    graph = fxq.convert(prepared, engine="graph")
    forms = {to: fxq.convert(prepared, to=to) for to in ("int8", "fake_quant", "reference")}
    forms["copied"] = copy.deepcopy(forms["int8"])
    for _ in range(4):
        x = torch.randn(3, 8)
        with torch.no_grad():
            wanted = model(x)
            assert same(prepared.graph_module(x), wanted, values=True)
            assert all(same(form(x), wanted, values=False) for form in forms.values())
            assert same(forms["int8"](x), graph(x), values=True)


def test_a_model_in_training_gives_it_too():
    torch.manual_seed(0)
    training = fxq.prepare_qat(Net(GIVEN["defaultdict"]).train(), torch.randn(3, 8))
    found = training(torch.randn(3, 8))
    found["y"][0].sum().backward()
    assert type(found) is defaultdict
    assert found["another"] == []
    assert all(parameter.grad is not None for parameter in training.first.parameters())


@pytest.mark.parametrize("name", ["defaultdict", "OrderedDict", "deque"])
def test_files_hold_those_of_python(name, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    int8 = fxq.quantize(Net(GIVEN[name]).eval(), [x], progress=False)
    fxq.save(int8, tmp_path / "model.fxq")
    assert same(fxq.load(tmp_path / "model.fxq")(x), int8(x), values=True)


def test_a_class_that_cannot_be_made_again_is_named():
    model = Net(lambda y, h: Counted(first=y)).eval()
    with pytest.warns(FxQuantWarning, match="(?s)becomes a plain one.*Counted.*the same again of its items"):
        prepared = fxq.prepare(model, torch.randn(3, 8))
    assert type(prepared.graph_module(torch.randn(3, 8))) is dict


def test_a_class_that_no_graph_holds_is_refused_by_what_it_is():
    class Answer:
        def __init__(self, y: Tensor) -> None:
            self.y = y

    with pytest.raises(TracingError, match="an object of a class of its own, given back or handed on"):
        fxq.prepare(Net(lambda y, h: Answer(y)).eval(), torch.randn(3, 8))


def test_what_makes_a_container():
    assert not any(map(is_of_own_class, ({}, [], (), Both(torch.ones(1)), torch.Size([2]), torch.ones(3).max(0), 3)))
    assert default_dict("list", [("a", 1)]) == defaultdict(list, a=1)
    assert maker_of(defaultdict(dict, a=1)) == (default_dict, ("dict", [("a", 1)]))
    assert maker_of(defaultdict(lambda: 3)) is None
    assert maker_of(deque([1, 2])) == (deque, ([1, 2],))
    assert maker_of(deque([1, 2], maxlen=2)) is None
    assert maker_of(Counted(first=torch.ones(1))) is None
