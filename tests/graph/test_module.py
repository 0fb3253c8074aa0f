"""Copies and pickles of a traced module keep names, metadata, hooks and attributes."""

from __future__ import annotations

import collections
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import graph_module

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.graph.query import CALLED, VALUE, NamedClass
from fxquant.passes.normalize import normalize

Pair = collections.namedtuple("Pair", "left right")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU()
        self.classes = ["cat", "dog"]
        self.register_buffer("shift", torch.ones(1), persistent=False)

    def forward(self, x: Tensor, scale: float = 2.0) -> dict:
        y = self.relu(self.conv(x)) * scale + self.shift
        pooled = F.max_pool2d(y, 2)
        return {"pair": Pair(pooled[:, 1:, ::2], [y.size(0), None]), "rest": torch.cat([y, y], 1)}


X = torch.rand(2, 3, 8, 8)


def traced() -> torch.fx.GraphModule:
    gm = normalize(trace(Net().eval(), example_args=(X,)), None)
    gm.recompile()
    return gm


@pytest.mark.parametrize("through", [copy.deepcopy, lambda gm: pickle.loads(pickle.dumps(gm))], ids=["copy", "pickle"])
def test_a_copy_is_what_the_original_is(through):
    gm = traced()
    assert gm.classes == ["cat", "dog"]
    twin = through(gm)
    assert type(twin).__name__ == "Net"
    assert [node.name for node in twin.graph.nodes] == [node.name for node in gm.graph.nodes]
    assert str(twin.graph) == str(gm.graph)
    assert twin.code == gm.code
    for ours, theirs in zip(twin.graph.nodes, gm.graph.nodes, strict=True):
        assert ours.meta.get(VALUE) == theirs.meta.get(VALUE)
        assert ours.meta.get(CALLED) == theirs.meta.get(CALLED)
        assert ours.stack_trace == theirs.stack_trace
    assert twin.classes == ["cat", "dog"]
    assert twin.state_dict().keys() == gm.state_dict().keys() == {"conv.weight", "conv.bias"}
    assert not any(module.training for module in twin.modules())
    expected, got = gm(X), twin(X)
    assert isinstance(got["pair"], Pair)
    assert torch.equal(got["pair"].left, expected["pair"].left)
    assert got["pair"].right == [2, None]
    assert torch.equal(got["rest"], expected["rest"])
    assert torch.equal(twin(X, scale=3.0)["rest"], gm(X, scale=3.0)["rest"])


def test_a_copy_shares_nothing():
    gm = traced()
    twin = copy.deepcopy(gm)
    with torch.no_grad():
        twin.conv.weight.zero_()
    next(iter(twin.graph.nodes)).meta["mine"] = 1
    assert gm.conv.weight.abs().sum() > 0
    assert "mine" not in next(iter(gm.graph.nodes)).meta


def count(module, args, output) -> None:
    module.calls = getattr(module, "calls", 0) + 1


def test_hooks_of_the_model_survive():
    model = Net().eval()
    model.register_forward_hook(count)
    gm = copy.deepcopy(trace(model, example_args=(X,)))
    before = getattr(gm, "calls", 0)
    gm(X)
    assert gm.calls == before + 1


class Classifier(nn.Module):
    classes = ("cat", "dog")

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.cut = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    @property
    def count(self) -> int:
        return len(self.classes)

    @staticmethod
    def squared(value: int) -> int:
        return value * value

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.classes

    def predict(self, x: Tensor) -> list[str]:
        return [self.classes[index] for index in (self(x) - self.cut).argmax(1).tolist()]


def test_what_the_users_class_has_is_found():
    model, x = Classifier().eval(), torch.rand(3, 4)
    gm = trace(model, example_args=(x,))
    for one in (gm, copy.deepcopy(gm), pickle.loads(pickle.dumps(gm))):
        assert one.predict(x) == model.predict(x)
        assert (one.count, one.squared(3), one.cut) == (2, 9, 0.0)
        assert one.names() is one.classes is model.classes
        one.get_submodule("linear").register_forward_hook(lambda module, args, out: -out)
        assert one.predict(x) == ["dog" if name == "cat" else "cat" for name in model.predict(x)]
        with pytest.raises(AttributeError, match="has no attribute 'predicted'"):
            _ = one.predicted


def test_a_class_that_cannot_be_imported_is_done_without():
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

        def twice(self, x: Tensor) -> Tensor:
            return self(self(x))

    gm = trace(Local(), example_args=(torch.zeros(1),))
    assert float(gm.twice(torch.zeros(1))) == 2
    loaded = pickle.loads(pickle.dumps(gm))
    assert float(loaded(torch.zeros(1))) == 1
    with pytest.raises(AttributeError, match="has no attribute 'twice'"):
        _ = loaded.twice


def test_a_model_with_a_graph_module_that_is_kept_whole_is_pickled():
    inner = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model, x = nn.Sequential(inner, nn.Linear(4, 3)).eval(), torch.rand(5, 4)
    prepared = fxq.prepare(model, x, leaf_modules=("0",))
    prepared(x)
    for one in (prepared.graph_module, prepared, fxq.convert(prepared)):
        loaded = pickle.loads(pickle.dumps(one))
        assert torch.equal(loaded(x), one(x))
    assert ("0", torch.fx.GraphModule) in [node.meta.get(CALLED) for node in loaded.graph.nodes]


def test_the_type_of_a_call_that_cannot_be_imported_is_pickled_by_its_name():
    class Own(nn.Linear):
        pass

    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Own(4, 3)).eval(), torch.rand(5, 4)
    quantized = fxq.quantize(model, [x])
    loaded = pickle.loads(pickle.dumps(quantized))
    assert torch.equal(loaded(x), quantized(x))
    kinds = [node.meta[CALLED][1] for node in loaded.graph.nodes if CALLED in node.meta]
    assert NamedClass(f"{__name__}.{Own.__qualname__}") in kinds


def test_buffers_that_are_no_part_of_the_state_stay_so_with_every_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.14, ``torch.fx`` made all buffers a part of the state."""
    usual = graph_module._copy_attr

    def of_before(from_module: nn.Module, to_module: nn.Module, target: str) -> None:
        usual(from_module, to_module, target)
        for module in to_module.modules():
            module._non_persistent_buffers_set.clear()

    monkeypatch.setattr(graph_module, "_copy_attr", of_before)

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(1))
            self.register_buffer("hidden", torch.ones(1), persistent=False)
            self.plain = torch.ones(1)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.seen + self.hidden + self.plain

    gm = trace(nn.Sequential(nn.Sequential(Inner())), example_args=(X,))
    assert gm.state_dict().keys() == {"0.0.seen"}
    assert dict(gm.named_buffers()).keys() == {"0.0.seen", "0.0.hidden", "0.0.plain"}
