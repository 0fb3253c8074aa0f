"""Functions that ``torch.fx.wrap`` names: looked into where that works, kept whole with a reason where it does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.errors import TracingError
from fxquant.graph.query import reason_of
from fxquant.graph.tracing import trace

X = torch.linspace(-1, 1, 2 * 5 * 4).reshape(2, 5, 4)


def scaled_product(x: Tensor, weight: Tensor, window: int) -> Tensor:
    """Pads, assigns to a part, and branches on a size."""
    batch, length, _ = x.shape
    x = F.pad(x, (0, 0, 0, (window - length % window) % window))
    mask = x.new_zeros((x.shape[1], 1))
    mask[-window:] = 1
    if length > window:
        x = x + mask
    return helper(F.linear(x, weight)).view(batch, -1, 4)


def helper(x: Tensor) -> Tensor:
    return x * 2


def depends(x: Tensor, limit: float) -> Tensor:
    y = x * 2
    y += 1
    return y if x.max() > limit else x


def kind(x: Tensor) -> str:
    return "tensor" if isinstance(x, Tensor) else "else"


for _name in ("scaled_product", "helper", "depends"):
    torch.fx.wrap(_name)


class Net(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.body, self.linear = body, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def test_a_wrapped_function_is_looked_into():
    model = Net(lambda self, x: scaled_product(x, self.linear.weight, window=3)).eval()
    gm = trace(model, example_args=(X,))
    targets = [node.target for node in gm.graph.nodes]
    assert scaled_product not in targets
    assert helper not in targets
    assert F.linear in targets
    for x in (X, X[:1], torch.cat((X, X), 1)):
        assert torch.equal(gm(x), model(x))
    assert not any(reason_of(node) for node in gm.graph.nodes)


def test_one_that_cannot_be_traced_stays_whole_and_leaves_nothing_behind():
    model = Net(lambda self, x: depends(self.linear(x), 0.5) + self.linear.weight.sum()).eval()
    gm = trace(model, example_args=(X,))
    called = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert [node.target.__name__ for node in called] == ["depends", "add"]
    line = depends.__code__.co_firstlineno + 3
    assert reason_of(called[0]) == (
        "torch.fx cannot trace it: a branch (if, while, and, or, assert) on the value of a tensor, "
        f"{__file__}:{line}: return y if x.max() > limit else x"
    )
    for x in (X, X * 9, -X * 9):
        assert torch.equal(gm(x), model(x))


def test_parameters_first_read_inside_a_failed_attempt_are_still_there():
    model = Net(lambda self, x: depends(F.linear(x, self.linear.weight), 0.0) * self.linear.weight[0])
    gm = trace(model, example_args=(X,))
    assert torch.equal(gm(X), model(X))


def test_everything_is_put_back():
    before = dict(globals())
    trace(Net(lambda self, x: helper(x)), example_args=(X,))
    assert {name: value for name, value in globals().items() if before.get(name) is not value} == {}
    assert "isinstance" not in vars(F)
    assert not hasattr(torch.zeros, "__wrapped__")
    with pytest.raises(TracingError, match="cannot trace"):
        trace(Net(lambda self, x: x if x.sum() > 0 else -x), example_args=(X,))
    assert globals().keys() == before.keys()


def test_isinstance_sees_what_a_proxy_stands_for():
    model = Net(lambda self, x: {kind(x): x, kind(x.shape): x + 1})
    assert list(trace(model, example_args=(X,))(X)) == ["tensor", "else"]
