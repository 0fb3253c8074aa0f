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
from torch.utils import _pytree as pytree

import fxquant as fxq
from fxquant.errors import FxQuantWarning, TracingError
from fxquant.graph.containers import default_dict, is_of_own_class, maker_of
from tests.sampling import one_of


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


@dataclass
class Registered:
    """What torch looks into."""

    count: Any
    size: Any


pytree.register_dataclass(Registered)


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


@pytest.mark.parametrize("name", one_of(3, GIVEN))
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


OF_SIZES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "size": lambda y, h: y.shape,
    "part of a size": lambda y, h: h.size()[:-1],
    "empty size": lambda y, h: y.shape[:0],
    "sum of sizes": lambda y, h: (2,) + y.shape,  # noqa: RUF005 - a list of items is a tuple, no Size
    "constant size": lambda y, h: torch.Size([2, 3]),
    "size made of sizes": lambda y, h: {"a": [torch.Size((y.shape[0], 2))]},
    "sizes in all": lambda y, h: {"a": [y.shape, (1, [h.shape])], "b": y.stride()},
    "OrderedDict": lambda y, h: OrderedDict(n=y.shape[0]),
    "OrderedDict with a tensor": lambda y, h: OrderedDict(s=y.shape, y=y),
    "OrderedDict in OrderedDict": lambda y, h: OrderedDict(a=OrderedDict(n=y.shape[0]), b=[y.shape]),
    "empty OrderedDict": lambda y, h: OrderedDict(),
    "OrderedDict of constants": lambda y, h: OrderedDict(a=1, b=torch.Size([2])),
    "OrderedDict that is read": lambda y, h: read_of(OrderedDict(n=y.shape[0]), y),
    "OrderedDict twice": lambda y, h: [OrderedDict(n=y.shape[0])] * 2,
    "defaultdict": lambda y, h: defaultdict(list, {"n": y.shape[0]}),
    "empty defaultdict": lambda y, h: {"d": defaultdict(int)},
    "deque": lambda y, h: deque([y.shape[0], y.shape]),
    "empty deque": lambda y, h: deque(),
    "UserDict": lambda y, h: UserDict(n=y.shape),
    "UserList": lambda y, h: UserList([y.shape]),
    "subclasses": lambda y, h: [Named(n=y.shape), Row([y.shape]), Pair([y.shape, h.shape]), Pair()],
    "named tuple": lambda y, h: Both(y.shape[0], y.shape),
    "named tuple of an OrderedDict": lambda y, h: Both(1, OrderedDict(n=y.shape)),
    "dataclass": lambda y, h: Output(y.shape[0], y.shape),
    "registered dataclass": lambda y, h: Registered(y.shape[0], y.shape),
    "registered dataclass with a tensor": lambda y, h: [OrderedDict(r=Registered(y, y.shape))],
    "what a size is beside": lambda y, h: (
        Level.LOW,
        range(y.shape[0]),
        slice(0, y.shape[0]),
        y.dtype,
        y.shape[0] * 1j,
    ),
}


def read_of(sizes: OrderedDict[str, int], y: Tensor) -> Any:
    return sizes, y.reshape(sizes["n"], -1)


def classes_of(value: Any) -> Any:
    """Classes, keys and numbers, in the structure of the value; of a tensor its shape."""
    if isinstance(value, (dict, UserDict)):
        beside = value.default_factory if isinstance(value, defaultdict) else None
        return type(value), beside, [(key, classes_of(item)) for key, item in value.items()]
    if isinstance(value, (tuple, list, UserList, deque)):
        return type(value), [classes_of(item) for item in value]
    if isinstance(value, (Output, Registered)):
        return type(value), classes_of(vars(value))
    return type(value), tuple(value.shape) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("name", one_of(3, OF_SIZES))
def test_sizes_and_containers_of_sizes_keep_their_classes_in_every_call(name):
    torch.manual_seed(0)
    x, model = torch.randn(3, 8), Net(lambda y, h: (y, OF_SIZES[name](y, h))).eval()
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    forms = [fxq.convert(prepared), fxq.convert(prepared, engine="graph"), fxq.convert(prepared, to="fake_quant")]
    wanted = classes_of(model(x))
    assert classes_of(prepared.graph_module(x)) == wanted
    for form in forms:
        assert [classes_of(form(x)) for _ in range(4)] == [wanted] * 4


def test_what_a_caller_changes_of_a_result_is_not_in_the_next_one():
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    model = Net(lambda y, h: (y, OrderedDict(n=y.shape[0], all=[y.shape]), deque([y.shape[0]]), {"n": [y.shape[0]]}))
    int8 = fxq.quantize(model.eval(), [x], progress=False)
    for _ in range(5):
        _, sizes, queue, plain = int8(x)
        assert (sizes, queue, plain) == (OrderedDict(n=3, all=[(3, 4)]), deque([3]), {"n": [3]})
        sizes["n"] = 7
        sizes["all"].append(7)
        queue.append(7)
        plain["n"].append(7)


def test_a_model_in_training_gives_it_too():
    torch.manual_seed(0)
    training = fxq.prepare_qat(Net(GIVEN["defaultdict"]).train(), torch.randn(3, 8))
    found = training(torch.randn(3, 8))
    found["y"][0].sum().backward()
    assert type(found) is defaultdict
    assert found["another"] == []
    assert all(parameter.grad is not None for parameter in training.first.parameters())


def test_files_hold_sizes(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    model = Net(lambda y, h: OrderedDict(y=y, s=y.shape, c=torch.Size([2, 3]), d=OrderedDict(n=y.shape[0])))
    int8 = fxq.quantize(model.eval(), [x], progress=False)
    fxq.save(int8, tmp_path / "model.fxq")
    loaded = fxq.load(tmp_path / "model.fxq")
    assert [classes_of(loaded(x)) for _ in range(4)] == [classes_of(model(x))] * 4


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
