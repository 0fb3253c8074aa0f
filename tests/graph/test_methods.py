"""Methods of the user's class on converted models: they run where they call the model, or say what they lack."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.errors import MethodError
from fxquant.graph.methods import unused_modules

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
FORMS = ("int8", "fake_quant", "reference")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.criterion = nn.CrossEntropyLoss()
        self.unused = nn.Linear(2, 2)
        self.temperature = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)).mean((2, 3)))

    def predict(self, x: Tensor) -> Tensor:
        self.called = True
        return F.softmax(self(x) / self.temperature, 1).argmax(1)

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        return self.criterion(self(x), target)

    def extract(self, x: Tensor) -> Tensor:
        return self.body(x)

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)

    def misspelt(self) -> Tensor:
        return self.heads

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device if isinstance(self, nn.Module) else torch.device("meta")


def converted(to: str) -> torch.fx.GraphModule:
    torch.manual_seed(0)
    prepared = fxq.prepare(Net().eval(), X).calibrate([X], progress=False)
    return fxq.convert(prepared, to=to)


@pytest.mark.parametrize("to", FORMS)
def test_methods_that_call_the_model_run(to):
    for model in (made := converted(to), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        out, target = model(X), torch.tensor([0, 1])
        assert torch.equal(model.predict(X), out.argmax(1))
        assert model.called
        assert torch.equal(model.loss(X, target), F.cross_entropy(out, target))
        assert model.device == torch.device("cpu")
        assert "criterion" not in dict(model.named_modules())


@pytest.mark.parametrize(
    ("to", "method", "attribute"),
    [*((to, "extract", "body") for to in FORMS), *((to, "classify", "head") for to in ("int8", "fake_quant"))],
)
def test_a_method_that_calls_layers_of_the_graph_says_so(to, method, attribute):
    model = converted(to)
    with pytest.raises(MethodError) as caught:
        getattr(model, method)(X)
    assert str(caught.value) == (
        f"the method {method!r} needs self.{attribute}, which this model has not as the float model had it: it is part "
        "of the graph now, and does not run by itself\n"
        f"  at:       Net.{method}\n"
        "  expected: a method that calls self(...), and uses attributes\n"
        f"  hint:     let forward return what {method!r} wants; or quantize the part that it runs by itself"
    )


def test_what_is_not_there_at_all():
    with pytest.raises(MethodError, match=r"needs self\.heads, .* the graph does not use it, so it was left out"):
        converted("int8").misspelt()


def test_only_modules_without_state_are_kept_beside_the_graph():
    model = Net().eval()
    assert unused_modules(model, trace(model, example_args=(X,))) == {"criterion": model.criterion}


class Base(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def scores(self, x: Tensor) -> Tensor:
        return self(x) * 2

    def features(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Owner(Base):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index + len(self)

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))

    def fuse(self) -> Owner:
        return self

    def both(self, x: Tensor) -> tuple[Owner, Tensor]:
        return self, self(x)

    def in_a_list(self) -> list[Owner]:
        return [self]

    def remember(self) -> None:
        self.me = self

    def invalidate(self) -> int:
        self.count = 1
        value = self.count
        del self.count
        return value

    def operators(self) -> tuple[Any, ...]:
        return len(self), self[1], [*self], 2 in self, bool(self)

    def copies(self) -> tuple[Any, ...]:
        return copy.copy(self), copy.deepcopy(self)

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x) + 1

    def features(self, x: Tensor) -> Tensor:
        return super().features(x)

    def unknown(self) -> Any:
        return super().nothing()

    def who(self) -> tuple[Any, ...]:
        return isinstance(self, Owner), self.__class__, hash(self), repr(self), "scores" in dir(self), vars(self)

    @property
    def itself(self) -> Owner:
        return self

    @cached_property
    def number(self) -> list[int]:
        return [1]


OWNER_X = torch.rand(3, 4)


@pytest.fixture
def owner() -> torch.fx.GraphModule:
    return fxq.convert(fxq.prepare(Owner().eval(), OWNER_X).calibrate([OWNER_X], progress=False))


def test_a_method_that_returns_self_returns_the_model(owner):
    assert owner.fuse() is owner
    assert owner.itself is owner
    model, out = owner.both(OWNER_X)
    assert model is owner
    owner.remember()
    assert owner.me is owner
    del owner.me
    torch.save(owner.fuse(), file := io.BytesIO())
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(OWNER_X), out)
    (inner,) = pickle.loads(pickle.dumps(owner.in_a_list()))
    assert type(inner).__name__ == "Owner"
    assert torch.equal(inner(OWNER_X), out)


def test_a_bound_method_belongs_to_the_model(owner):
    assert owner.scores.__self__ is owner
    assert torch.equal(pickle.loads(pickle.dumps(owner.scores))(OWNER_X), owner.scores(OWNER_X))


def test_methods_use_self_as_they_use_a_module(owner):
    assert owner.invalidate() == 1
    assert not hasattr(owner, "count")
    assert owner.operators() == (7, 8, [1, 2], True, True)
    assert owner.number is owner.number
    is_owner, kind, hashed, text, listed, attributes = owner.who()
    assert (is_owner, kind, hashed, text, listed) == (True, Owner, hash(owner), repr(owner), True)
    assert attributes is vars(owner)
    for copied in owner.copies():
        assert copied is not owner
        assert isinstance(copied, torch.fx.GraphModule)
        assert torch.equal(copied(OWNER_X), owner(OWNER_X))


def test_super_finds_what_the_users_class_inherits(owner):
    assert torch.equal(owner.scores(OWNER_X), owner(OWNER_X) * 2 + 1)
    with pytest.raises(MethodError, match=r"needs self\.layers, .* part of the graph now"):
        owner.features(OWNER_X)
    with pytest.raises(AttributeError, match="'super' object has no attribute 'nothing'"):
        owner.unknown()


class Chain(nn.Sequential):
    def depth(self) -> int:
        return len(self)

    def lengths(self) -> Any:
        return self["x"]

    def called(self) -> bool:
        return callable(self)


@pytest.mark.parametrize("method", ["depth", "lengths"])
def test_the_layers_of_a_container_are_not_those_of_its_graph(method):
    gm = trace(Chain(nn.Linear(4, 4), nn.ReLU()).eval(), example_args=(OWNER_X,))
    with pytest.raises(MethodError, match=r"needs self\.__\w+__, .* do not run by themselves"):
        getattr(gm, method)()
    assert gm.called()


def test_a_class_without_operators_has_none():
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

        def length(self) -> int:
            return len(self)

        def true(self) -> bool:
            return bool(self)

    gm = trace(Plain(), example_args=(OWNER_X,))
    assert gm.true()
    with pytest.raises(TypeError, match="'Plain' has no __len__"):
        gm.length()
