"""Copies of the user's model: what they share, what cannot be copied, and what a graph keeps of a model."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Tracer

import fxquant as fxq
from fxquant.capture.copies import carry_over, check_unscripted, copy_of
from fxquant.errors import InputError, TracingError


def test_parameters_are_shared_and_buffers_are_not():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    whole, sharing = copy_of(model), copy_of(model, shares_parameters=True)
    assert whole[0].weight is not model[0].weight
    assert sharing[0].weight is model[0].weight
    assert sharing[1].running_mean is not model[1].running_mean


def test_what_autograd_computed_is_detached():
    model = nn.Linear(2, 2)
    model.doubled = model.weight * 2
    assert torch.equal(copy_of(model).doubled, model.doubled)
    assert model.doubled.grad_fn is not None


def test_the_attribute_that_cannot_be_copied_is_named():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].lock = threading.Lock()
    with pytest.raises(TracingError, match=r"attribute '0\.lock', a lock"):
        copy_of(model)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_scripted_submodules_are_refused():
    model = nn.Sequential(torch.jit.trace(nn.ReLU(), torch.ones(1)))
    with pytest.raises(TracingError, match="submodule '0' is a ScriptModule"):
        check_unscripted(model)


def test_a_graph_keeps_attributes_hooks_and_modes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model.classes = ["a", "b"]
    model[1].eval()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    gm = GraphModule(model, Tracer().trace(model))
    carry_over(model, gm)
    assert gm.classes == ["a", "b"]
    assert gm.training
    assert not gm.get_submodule("1").training
    gm(torch.ones(1, 2))
    assert calls == [1]


class Faulty(nn.Module):
    """Its own code fails, for a reason that is not the tracing of it."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fc, self.fault, self.table = nn.Linear(4, 4), fault, {}

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "attribute":
            return self.missing(x)
        if self.fault == "key":
            return self.fc(x) * self.table["scale"]
        if self.fault == "argument":
            return torch.relu(self.fc(x), 3, 4)
        assert x.shape[1] == 5, "five features"
        return self.fc(x)


FAULTS = {
    "attribute": ("self.missing(x)", "AttributeError: 'Faulty' object has no attribute 'missing'"),
    "key": ('self.table["scale"]', "KeyError: 'scale'"),
    "argument": ("torch.relu(self.fc(x), 3, 4)", "TypeError: relu() takes 1 positional argument but 3 were given"),
    "assertion": ("assert x.shape[1] == 5", "AssertionError: five features"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_of_the_model_itself_is_none_of_tracing(fault: str) -> None:
    line, got = FAULTS[fault]
    with pytest.raises(InputError) as caught:
        fxq.prepare(Faulty(fault).eval(), torch.ones(2, 4))
    what, at, *rest = str(caught.value).splitlines()
    assert what == "the model itself does not run on the example inputs"
    assert at.startswith(f"  at:       {__file__}:")
    assert line in at
    assert rest == [
        f"  got:      {got}",
        "  hint:     Faulty.forward raises this in float too: model(*example_inputs) shows where",
    ]
