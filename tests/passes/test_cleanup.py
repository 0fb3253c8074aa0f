"""What nothing reads is removed, unless running it has an effect."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.errors import InputError
from fxquant.passes.cleanup import eliminate_dead_code

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.dead = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.norm = nn.BatchNorm1d(3)
        self.counter = Counter()
        self.hooked = nn.ReLU()
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x, flag=None):
        y = self.used(x)
        _ = self.dead(y) + self.unused
        _ = self.norm(y)
        self.counter(y)
        self.hooked(y)
        y.view(-1).add_(1)
        return y


def cleaned(model, calls=None):
    gm = trace(model, example_args=(X,), leaf_types=(Counter,))
    gm = eliminate_dead_code(gm, None)
    gm.graph.lint()
    gm.recompile()
    return gm


def test_only_what_has_an_effect_stays():
    model = Net().eval()
    model.hooked.register_forward_hook(lambda *_: None)
    gm = cleaned(model)
    called = [node.target for node in gm.graph.nodes if node.op in ("call_module", "call_method", "get_attr")]
    assert called == ["used", "counter", "hooked", "view", "add_"]
    assert sorted(name for name, _ in gm.named_children()) == ["counter", "hooked", "used"]
    assert torch.equal(gm(X), model(X))
    assert int(gm.counter.calls) == 1


def test_a_batch_norm_that_learns_stays():
    gm = cleaned(Net().train())
    assert "norm" in dict(gm.named_children())


def test_guards_stay():
    gm = cleaned(Net().eval())
    with pytest.raises(InputError, match="the argument 'flag' was fixed"):
        gm(X, flag=True)
