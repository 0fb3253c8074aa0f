"""Methods of the user's class on converted models: they run where they call the model, or say what they lack."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import MethodError
from fxquant.graph.methods import modules_beside
from fxquant.graph.tracing import trace

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
    assert modules_beside(model, trace(model, example_args=(X,))) == {"criterion": model.criterion}
