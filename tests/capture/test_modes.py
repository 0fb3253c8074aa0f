"""What drops values while training follows ``self.training``; what says ``training=False`` itself never does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.modes import EVALUATION, as_bool, marked_modes, plain_modes
from fxquant.capture.tracing import trace
from fxquant.graph.query import ONLY_IN_TRAINING

X = torch.rand(32, 4)


def helper(x: Tensor, training: bool = False) -> Tensor:
    return F.dropout(x, 0.5, training)


def noise(x: Tensor, training: bool = False) -> Tensor:
    return x + torch.rand_like(x) if training else x


class Model(nn.Module):
    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 64), nn.Dropout(0.3), nn.Linear(64, 64)
        self.body, self.always = body, False

    def forward(self, x):
        return self.last(self.body(self, torch.relu(self.first(x))))


FOLLOW: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "by position": lambda m, x: F.dropout(x, 0.5, m.training),
    "by keyword": lambda m, x: F.dropout(x, training=m.training),
    "in place": lambda m, x: F.dropout(x, 0.5, m.training, inplace=True),
    "torch.dropout": lambda m, x: torch.dropout(x, 0.5, m.training),
    "of another module": lambda m, x: F.dropout(x, m.drop.p, m.drop.training),
    "and": lambda m, x: F.dropout(x, 0.5, m.drop.p > 0 and m.training),
    "and, the other way": lambda m, x: F.dropout(x, 0.5, m.training and m.drop.p > 0),
    "made a bool": lambda m, x: F.dropout(x, 0.5, bool(m.training)),
    "or": lambda m, x: F.dropout(x, 0.5, m.training or m.always),
    "compared": lambda m, x: F.dropout(x, 0.5, m.training == True),  # noqa: E712
    "twice not": lambda m, x: F.dropout(x, 0.5, not (not m.training)),  # noqa: SIM208
    "chosen by it": lambda m, x: F.dropout(x, 0.5, True if m.training else False),  # noqa: SIM210
    "a helper": lambda m, x: helper(x, m.training),
    "a helper that is idle": lambda m, x: noise(x, training=m.training),
    "alpha": lambda m, x: F.alpha_dropout(x, 0.5, m.training),
    "channels": lambda m, x: F.dropout1d(x[None], 0.5, m.training)[0],
    "of numbers": lambda m, x: x * F.dropout(torch.ones(64), 0.5, m.training),
    "module": lambda m, x: m.drop(x),
}
NEVER: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "by position": lambda m, x: F.dropout(x, 0.5, False),
    "by keyword": lambda m, x: F.dropout(x, training=False),
    "in place": lambda m, x: F.dropout(x, 0.5, False, inplace=True),
    "torch.dropout": lambda m, x: torch.dropout(x, 0.5, False),
    "a default": lambda m, x: F.alpha_dropout(x, 0.5),
    "a helper": lambda m, x: helper(x, False),
    "a default of a helper": lambda m, x: helper(x),
    "a helper that is idle": lambda m, x: noise(x, training=False),
    "of numbers": lambda m, x: x * F.dropout(torch.ones(64), 0.5, False),
}


def trained(body: Callable[[Any, Tensor], Tensor]) -> Any:
    qat = fxq.prepare_qat(Model(body).train(), X)
    qat(X)
    return qat.apply(fxq.disable_observer)


@pytest.mark.parametrize("body", FOLLOW.values(), ids=FOLLOW.keys())
def test_what_takes_the_mode_of_a_module_drops_values_while_training(body):
    qat = trained(body)
    assert not torch.equal(qat(X), qat(X))
    assert torch.equal(qat.eval()(X), qat(X))
    assert not torch.equal(qat.train()(X), qat(X))


@pytest.mark.parametrize("body", NEVER.values(), ids=NEVER.keys())
def test_what_says_false_itself_never_does(body):
    qat = trained(body)
    assert torch.equal(qat(X), qat(X))
    assert "dropout" not in qat.code
    assert [node.op for node in qat.graph.nodes if "regularizer" in node.name] == []


@pytest.mark.parametrize("body", [*FOLLOW.values(), *NEVER.values()])
def test_in_evaluation_mode_they_are_alike(body):
    model = Model(body).eval()
    assert torch.equal(fxq.prepare(model, X)(X), model(X))


class Strict(nn.Module):
    """Takes nothing but a bool."""

    def forward(self, x):
        assert type(self.training) is bool
        return F.dropout(x, 0.5, self.training)


@pytest.mark.parametrize("leaf", [False, True])
def test_code_that_takes_nothing_but_a_bool(leaf):
    model = nn.Sequential(nn.Linear(4, 64), Strict(), nn.Linear(64, 4)).train()
    qat = fxq.prepare_qat(model, X, leaf_modules=(Strict,) if leaf else ())
    qat(X)
    qat.apply(fxq.disable_observer)
    assert not torch.equal(qat(X), qat(X))
    assert torch.equal(qat.eval()(X), qat(X))


def test_a_model_with_a_part_that_cannot_be_traced_keeps_its_modes():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.branch, self.last = nn.Linear(4, 64), Branch(), nn.Linear(64, 4)

        def forward(self, x):
            return self.last(F.dropout(self.branch(self.first(x)), 0.5, False))

    with pytest.warns(fxq.FxQuantWarning, match="torch.fx cannot trace the submodule 'branch'"):
        qat = fxq.prepare_qat(Both().train(), X)
    qat(X)
    qat.apply(fxq.disable_observer)
    assert torch.equal(qat(X), qat(X))


class Asks(nn.Module):
    """Looks at its mode, which says nothing of what other modules do."""

    def forward(self, x):
        if self.training:
            return x.mul(2)
        return x * 2


class Says(nn.Module):
    def forward(self, x, training=False):
        return F.dropout(x, 0.5, training)


@pytest.mark.filterwarnings("ignore:code that runs only while training is left out")
def test_what_another_module_asks_is_not_what_this_one_says():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.asks, self.says, self.last = nn.Linear(4, 64), Asks(), Says(), nn.Linear(64, 4)

        def forward(self, x):
            return self.last(self.says(self.asks(self.first(x))))

    class Decides(Both):
        def forward(self, x):
            return self.last(self.says(self.asks(self.first(x)), bool(self.training)))

    qat = fxq.prepare_qat(Both().train(), X)
    qat(X)
    qat.apply(fxq.disable_observer)
    assert torch.equal(qat(X), qat(X))
    qat = fxq.prepare_qat(Decides().train(), X)
    qat(X)
    qat.apply(fxq.disable_observer)
    assert not torch.equal(qat(X), qat(X))


def test_the_mark_is_false_and_goes():
    model = Model(lambda m, x: x).eval()
    model.drop.train()
    with marked_modes(model):
        assert model.training is EVALUATION
        assert model.drop.training is True
        assert repr(model.training) == "False"
        with plain_modes(model.first):
            assert model.first.training is False
        assert model.first.training is EVALUATION
        assert not EVALUATION.was_converted
        assert bool(model.training) is False
        assert EVALUATION.was_converted
    with marked_modes(model):
        assert (model.training == False, model.training != False, {model.training: 1}[0]) == (True, False, 1)  # noqa: E712
        assert EVALUATION.was_converted
    assert model.training is model.first.training is False
    assert [as_bool(value) for value in (EVALUATION, True, 0, None)] == [False, True, 0, None]


class Branch(nn.Module):
    """Another result in evaluation mode, asked for by identity."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        if self.training is False:
            return y
        return y, self.head(y)


@pytest.mark.filterwarnings("ignore:.*will not be trained")
def test_a_mode_that_is_asked_by_identity_is_that_of_evaluation():
    assert isinstance(fxq.prepare_qat(Branch().train(), X).eval()(X), Tensor)


def drop(x, p=0.5, training=True):
    return x if not training else x * p


def always(x, p=0.5, training=True):
    return x + 0 if not training else x * p


class Drop(nn.Module):
    def forward(self, x):
        return x * 0.5 if self.training else x


class Same(nn.Module):
    def forward(self, x):
        return x


class Second(nn.Module):
    def forward(self, x, y):
        return x * y if self.training else y


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.same, self.second = Drop(), Same(), Second()

    def forward(self, x, y):
        x = drop(self.drop(self.same(x)), 0.1, self.training)
        x = drop(x, training=self.training) + always(x, training=self.training)
        return x + self.second(x, y)


def test_what_becomes_a_node():
    x, y = torch.rand(2), torch.rand(2)
    model = Idle().eval()
    gm = trace(model, example_args=(x, y))
    idle = [node for node in gm.graph.nodes if ONLY_IN_TRAINING in node.meta]
    assert [(node.op, node.target) for node in idle] == [
        ("call_module", "drop"),
        ("call_function", drop),
        ("call_function", drop),
    ]
    assert torch.equal(gm(x, y), model(x, y))
    assert drop.__code__.co_name == "drop"  # nothing is left of the trace
