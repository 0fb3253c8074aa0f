"""What a forward keeps from one call to the next is kept, or it is not exported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning, TracingError
from tests.sampling import one_of

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Keeps(nn.Module):
    """Keeps something between calls; torch.fx cannot trace it, so that it is exported."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(1))
        self.hidden, self.calls, self.past, self.found = torch.zeros(4, 8), 0, [torch.zeros(4, 8)], {}
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        y = nn.ReLU()(self.fc(x))
        return getattr(self, self.how)(y)

    def buffer_in_place(self, y: Tensor) -> Tensor:
        self.count.add_(1)
        return y * self.count

    def buffer(self, y: Tensor) -> Tensor:
        self.count = self.count + 1
        return y * self.count

    def tensor(self, y: Tensor) -> Tensor:
        self.hidden = y + self.hidden
        return self.hidden

    def number(self, y: Tensor) -> Tensor:
        self.calls += 1
        return y * self.calls

    def far_number(self, y: Tensor) -> Tensor:
        self.calls += 1
        return y if self.calls < 3 else -y

    def items(self, y: Tensor) -> Tensor:
        self.past.append(y)
        return torch.stack(self.past).sum(0)

    def of_this_call(self, y: Tensor) -> Tensor:
        self.found["y"], self.hidden, self.size = y, y * 2, len(y)
        return self.found["y"] + self.hidden

    def made_once(self, y: Tensor) -> Tensor:
        if "mask" not in self.found:
            self.found["mask"] = torch.ones(8)
        return y * self.found["mask"]

    def drawn(self, y: Tensor) -> Tensor:
        self.hidden = y
        return y + torch.rand(8) * 0


class Around(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, 8), Keeps(how), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


def differences(prepared: Any, model: nn.Module) -> float:
    own = copy.deepcopy(model)
    return max((prepared(X) - own(X)).abs().max().item() for _ in range(4))


@pytest.mark.parametrize("capture", ["auto", "export"])
@pytest.mark.parametrize("how", one_of(3, ["buffer_in_place", "of_this_call", "made_once", "drawn"]))
def test_what_a_program_keeps_starts_from_the_state_of_the_model(how, capture):
    model = Around(how).eval()
    prepared = fxq.prepare(model, X, capture=capture)
    if capture == "auto":
        assert [(one.path, one.error) for one in prepared.coverage().captures if one.by == "torch.export"] == [
            ("block", "")
        ]
    assert prepared.graph_module.get_buffer("block.count").item() == 0 if how == "buffer_in_place" else True
    assert differences(prepared, model) < 1e-6
    assert model.block.count.item() == 0


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("buffer", "count"),
        ("tensor", "hidden"),
        ("number", "calls"),
        ("far_number", "calls"),
        ("items", "past"),
    ],
)
def test_what_a_program_loses_is_not_exported(how, name):
    model = Around(how).eval()
    with pytest.raises(TracingError) as caught:
        fxq.prepare(model, X, capture="export")
    assert str(caught.value).splitlines() == [
        "a program of torch.export does not keep what the model keeps from one call to the next",
        f"  got:      its forward changes block.{name}",
        "  expected: a forward that changes nothing but buffers, in place",
        "  hint:     register_buffer, and self.buffer.copy_(value) or self.buffer.add_(1), is kept",
    ]
    if how == "buffer":  # of the exported module itself, torch.export keeps it
        assert differences(fxq.prepare(model, X), model) < 1e-6
        return
    with pytest.warns(FxQuantWarning, match="cannot trace the submodule 'block'"):
        prepared = fxq.prepare(model, X)
    assert f"its forward changes {name}" in str(prepared.coverage())
    assert [row.module for row in prepared.coverage().float_rows] == ["block"]
    assert differences(prepared, model) < 1e-6


class Counter:
    """Counts calls outside of what a module shows of itself."""

    calls = 0

    def __call__(self, y: Tensor) -> Tensor:
        self.calls += 1
        return y if self.calls < 2 else -y


class WithObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.counter = nn.Linear(8, 8), Counter()

    def forward(self, x: Tensor) -> Tensor:
        return self.counter(nn.ReLU()(self.fc(x)))


def calls_of(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> int:
    """Count the calls of a model on real values while it is prepared."""
    calls = []
    forward = type(model).forward

    def counted(self: nn.Module, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            calls.append(1)
        return forward(self, x)

    monkeypatch.setattr(type(model), "forward", counted)
    fxq.prepare(model, X, capture="export")
    return len(calls)


def test_a_model_without_state_is_called_once_to_see_that(monkeypatch):
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.sizes, self.act = nn.Linear(8, 8), [1, 2], nn.ReLU

        def forward(self, x: Tensor) -> Tensor:
            return self.act()(self.fc(x))

    # check_state, the second size doubled, which the layer refuses, and the results of the model
    assert calls_of(monkeypatch, Plain().eval()) == 3


def test_an_object_that_counts_calls_is_found_by_a_second_call():
    with pytest.raises(TracingError) as caught:
        fxq.prepare(WithObject().eval(), X, capture="export")
    assert "its second call gives other values than the first" in str(caught.value)


def test_exporting_copies_the_parameters_once(monkeypatch):
    copies = []
    original = nn.Parameter.__deepcopy__

    def counted(self: nn.Parameter, memo: Any) -> nn.Parameter:
        copies.append(self.shape)
        return original(self, memo)

    monkeypatch.setattr(nn.Parameter, "__deepcopy__", counted)
    prepared = fxq.prepare(Around("of_this_call").eval(), X, capture="export")
    assert len(copies) == 6
    assert prepared.graph_module.get_parameter("block.fc.weight").shape == (8, 8)
