"""``prepare(model, None)``: a cast stays unless the dtype is known, and only what is known to be float is quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.compat.quantize import quantize_dynamic
from fxquant.compat.quantize_fx import convert_fx, get_default_qconfig_mapping, prepare_fx


@torch.fx.wrap
def rounded(x: torch.Tensor, like: torch.dtype) -> torch.Tensor:
    """Round to integers, whatever dtype is named."""
    return (x * 5).to(torch.int32 if like.is_floating_point else torch.int64)


class Net(nn.Module):
    """A function between layers."""

    def __init__(self, between: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.table = nn.Linear(8, 8), nn.Linear(8, 4), nn.Embedding(50, 8)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self, x))


CASTS = {
    "to": lambda net, x: (x * 5).to(torch.int32).float(),
    "to_of_layer": lambda net, x: (net.first(x) * 9).to(torch.int32).to(torch.float32),
    "to_keyword": lambda net, x: net.first(x * 5).to(dtype=torch.int64) * 1.0,
    "to_bool": lambda net, x: (x * 5 - 2).relu().to(torch.bool).to(x.dtype),
    "to_other": lambda net, x: (x * 5).to(torch.zeros(1, dtype=torch.int64)) * 1.0,
    "type": lambda net, x: (x * 5).type(torch.long).type(torch.float32),
    "byte": lambda net, x: (x * 5).byte().float(),
    "short": lambda net, x: (x * 5).short() * 1.0,
    "half": lambda net, x: x.half().float(),
    "double": lambda net, x: net.first(x).to(torch.float64).cumsum(0).to(torch.float32),
    "one_hot": lambda net, x: F.one_hot((x[:, 0] * 7).to(torch.long), 8).float(),
    "embedding": lambda net, x: net.table((x[:, 0] * 49).to(torch.long)),
    "bucketize": lambda net, x: torch.bucketize(x, torch.linspace(0, 1, 4)) * 1.0,
    "indices": lambda net, x: net.first(x).max(1, keepdim=True)[1] * 0.25 + x,
    "topk": lambda net, x: x.topk(8).indices * 0.25,
    "masks": lambda net, x: net.first(x) * ((x > 0.5) & ~(x > 0.9)),
    "function_of_the_user": lambda net, x: rounded(x, torch.float32).float(),
    "sum_of_mask": lambda net, x: net.first(x) / (1 + (x > 0.5).sum(1, keepdim=True)),
}


ANOTHER_SPELLING = ("to_of_layer", "to_keyword", "byte", "short", "double", "sum_of_mask")
"""Of a cast that make test has in one spelling."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "between",
    [
        pytest.param(between, id=name, marks=pytest.mark.slow if name in ANOTHER_SPELLING else ())
        for name, between in CASTS.items()
    ],
)
def test_casts_stay_and_integers_stay_integers(between):
    model, x = Net(between).eval(), torch.linspace(0, 0.99, 32).reshape(4, 8)
    expected = model(x)
    errors = []
    for example in (x, None):
        prepared = fxq.prepare(model, example)
        assert torch.equal(prepared(x), expected)
        prepared.observe(x)
        observed = prepare_fx(model, get_default_qconfig_mapping(), example)
        assert torch.equal(observed(x), expected)
        errors.append(
            [(int8(x) - expected).abs().max().item() for int8 in (fxq.convert(prepared), convert_fx(observed))]
        )
    assert errors[1] == pytest.approx(errors[0], abs=1e-5)
    assert (quantize_dynamic(model)(x) - expected).abs().max() < 0.2


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64, torch.bool])
def test_results_keep_their_dtype(dtype):
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.first(x) * 9).to(dtype)

    prepared = fxq.prepare(Ends().eval(), None)
    prepared.observe(torch.rand(4, 8))
    assert fxq.convert(prepared)(torch.rand(4, 8)).dtype is dtype


def test_inputs_that_are_cast_may_be_integers():
    model, x = Net(lambda net, x: net.first(x.float())).eval(), torch.arange(32).reshape(4, 8)
    prepared = fxq.prepare(model, None)
    prepared.observe(x)
    assert (fxq.convert(prepared)(x) - model(x)).abs().max() < 0.05 * model(x).abs().max()


def test_what_a_layer_reads_is_float():
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.abs().max().item()

    class Kept(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(x)

    model = nn.Sequential(nn.Linear(8, 8), Kept(), nn.Flatten(), nn.Linear(8, 4)).eval()
    prepared = fxq.prepare(model, None, leaf_modules=("1",))
    assert [unit.pattern for unit in prepared.plan.units] == ["linear", "flatten", "linear"]
