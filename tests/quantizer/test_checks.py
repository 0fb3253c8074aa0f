"""What is refused before any work is done, each with its words."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError, listing
from fxquant.graph.module import get_metadata
from tests.sampling import one_of

X = torch.rand(2, 3)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()


NAMES = ("observers", "weight_layers", "calibration_statistics", "quant_plan", "quant_coverage", "snapshots", "tuning",
         "parity", "preparation", "_engine", "a b", "a-b", "größe", "in", "None", "async")  # fmt: skip


class Named(nn.Module):
    """A layer, a parameter and a plain attribute of names that are the user's business."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(3, 3))
        self.other = nn.Linear(3, 3)

    def forward(self, x):
        return self.other(torch.relu(getattr(self, self.name)(x)))


@pytest.mark.parametrize("name", one_of(3, NAMES))
def test_any_name_is_the_users(name):
    torch.manual_seed(0)
    net = Named(name).eval()
    prepared = fxq.prepare(net, X).calibrate([X], progress=False)
    int8 = fxq.convert(prepared, check=X)
    assert isinstance(getattr(int8, name), nn.Module)
    assert get_metadata(int8, "parity").breaches == ()
    assert len(get_metadata(int8, "quant_plan").units) == 2
    expected = int8(X)
    again = fxq.prepare(net, X)
    again.load_state_dict(prepared.state_dict())
    assert torch.equal(fxq.convert(again)(X), expected)
    assert torch.equal(pickle.loads(pickle.dumps(int8))(X), expected)
    qat = fxq.prepare_qat(net, X)
    qat(X)
    assert len(get_metadata(fxq.convert(qat), "quant_plan").units) == 2


def test_a_plain_attribute_stays_what_it_is():
    torch.manual_seed(0)
    net = Named("first").eval()
    net.parity, net.snapshots = "mine", [1]
    int8 = fxq.convert(fxq.prepare(net, X).calibrate([X], progress=False), check=X)
    assert (int8.parity, int8.snapshots) == ("mine", [1])
    assert get_metadata(int8, "parity").breaches == ()


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\\b", "a\nb", '"); import os; ("', "a\x00b"])
def test_names_that_code_would_be_made_of(name):
    net = model()
    net.add_module(name, nn.Identity())
    with pytest.raises(InputError) as caught:
        fxq.prepare(net, X)
    assert str(caught.value) == (
        f"a name cannot stand in generated code\n  got:      {name!r}\n"
        "  expected: names of modules, parameters and buffers without quotes, backslashes and control characters\n"
        "  hint:     add_module and register_parameter take another name"
    )
    net = model()
    setattr(net[1], name, torch.zeros(1))
    with pytest.raises(InputError, match="a name cannot stand in generated code"):
        fxq.prepare_qat(net, X)


class Part(nn.Module):
    """A child, a parameter or a buffer of a name."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__()
        self.kind, self.name = kind, name
        if kind == "child":
            self.add_module(name, nn.Linear(3, 3))
        elif kind == "parameter":
            self.register_parameter(name, nn.Parameter(torch.eye(3)))
        else:
            self.register_buffer(name, torch.eye(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = getattr(self, self.name)
        return part(x) if self.kind == "child" else nn.functional.linear(x, part)


@pytest.mark.parametrize("kind", ["child", "parameter", "buffer"])
@pytest.mark.parametrize(
    "name", one_of(3, ["graph", "_graph", "meta", "code", "recompile", "print_readable", "shape_env"])
)
def test_names_of_traced_models_are_taken_inside_of_a_model_alone(kind: str, name: str) -> None:
    model = Part(kind, name).eval()
    for prepare in (fxq.prepare, fxq.prepare_qat):
        with pytest.raises(InputError) as caught:
            prepare(model, X)
        assert str(caught.value) == (
            "the model has parts under names that traced models use themselves\n"
            f"  got:      {name!r}\n"
            "  expected: other names of children, parameters and buffers of the model itself; inside of these any will "
            "do\n"
            "  hint:     nn.Sequential(model) in place of model, whose child it is then; or another name"
        )
    with pytest.raises(InputError, match="names that traced models use"):
        fxq.quantize(model, [X], progress=False)

    # What the hint says.
    int8 = fxq.quantize(nn.Sequential(model), [X], progress=False)
    for _ in range(3):
        torch.testing.assert_close(int8(X), model(X), atol=0.02, rtol=0)
    training = fxq.prepare_qat(nn.Sequential(model), X)
    training(X)
    torch.testing.assert_close(fxq.convert(training)(X), model(X), atol=0.02, rtol=0)


def test_long_listings_are_cut():
    lines = listing([str(number) for number in range(25)]).splitlines()
    assert len(lines) == 21
    assert lines[-1].strip() == "and 5 more"


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3)).eval()
    net[1].to_empty(device="cpu")
    with pytest.raises(InputError) as caught:
        fxq.prepare(net, X)
    assert str(caught.value) == (
        "the model is on the meta device, where tensors hold no values\n"
        "  got:      0.weight\n"
        "  expected: a model with its weights\n"
        "  hint:     model.to_empty(device='cpu'), and load a state dict"
    )
