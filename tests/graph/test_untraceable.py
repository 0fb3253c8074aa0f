"""Where tracing fails: the smallest submodule is kept whole, and the line at fault is named."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import FxQuantWarning, TracingError
from fxquant.graph.query import reason_of
from fxquant.graph.tracing import trace

X = torch.rand(2, 3)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.linear(row) for row in x])


class Counter(nn.Module):
    """Keeps a sum in an attribute that is no buffer, which no graph can."""

    total: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.sum()
        return x


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(3, 3), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x)) + 1


@pytest.mark.parametrize(
    ("inner", "meaning"),
    [
        (Branch(), "a branch (if, while, and, or, assert) on the value of a tensor"),
        (Loop(), "a loop over a tensor or over something made of one, whose length is not known"),
        (Counter(), "an assignment to self.total, which is no buffer: such state is no part of a graph"),
    ],
)
def test_the_smallest_submodule_is_kept_whole(inner, meaning):
    model = Outer(Outer(inner)).eval()
    with pytest.warns(FxQuantWarning) as caught:
        gm = trace(model, example_args=(X,), keep_untraceable=True)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith(f"torch.fx cannot trace the submodule 'inner.inner' (a {type(inner).__name__})")
    assert f"got:      {meaning}" in text
    assert f"at:       {__file__}:" in text
    assert text.splitlines()[1].rpartition(": ")[2] in inspect.getsource(type(inner))
    kept = [node for node in gm.graph.nodes if node.target == "inner.inner"]
    assert reason_of(kept[0]).startswith(f"torch.fx cannot trace it: {meaning}")
    assert {str(node.target) for node in gm.graph.nodes if node.op == "call_module"} == {
        "before",
        "inner.before",
        "inner.inner",
    }
    assert torch.equal(gm(X), model(X))
    assert torch.equal(gm(-X), model(-X))


def test_several_submodules_are_kept_each_with_a_warning():
    model = nn.Sequential(Branch(), nn.Linear(3, 3), Loop()).eval()
    with pytest.warns(FxQuantWarning) as caught:
        gm = trace(model, example_args=(X,), keep_untraceable=True)
    assert [str(warning.message).split("'")[1] for warning in caught] == ["0", "2"]
    assert torch.equal(gm(X), model(X))


def test_a_kept_module_goes_on_counting():
    model = nn.Sequential(nn.Linear(3, 3), Counter()).eval()
    with pytest.warns(FxQuantWarning):
        gm = trace(model, example_args=(X,), keep_untraceable=True)
    assert gm.get_submodule("1").total == 0.0  # the example left no trace
    with torch.no_grad():
        assert torch.equal(gm(X), model(X))
        assert torch.equal(gm(-X), model(-X))
        assert torch.equal(gm.get_submodule("1").total, model[1].total)


def test_the_models_own_forward_cannot_be_kept():
    with pytest.raises(TracingError) as caught:
        trace(Branch(), example_args=(X,), keep_untraceable=True)
    assert str(caught.value).startswith("torch.fx cannot trace the forward of the model itself (a Branch)")


def test_without_leave_the_first_is_an_error():
    with pytest.raises(TracingError) as caught:
        trace(nn.Sequential(Branch()), example_args=(X,))
    assert str(caught.value).startswith("torch.fx cannot trace the submodule '0' (a Branch)")
