"""Each function that takes weights, and the layer that computes the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.graph.layers import LAYERS

GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR)


NO_BIAS = {"bias": None}
CONV = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
TRANSPOSED = {**CONV, "output_padding": 1}
NORM = {"training": False, "momentum": 0.1, "eps": 1e-3}
STATISTICS = {"running_mean": rand(4), "running_var": rand(4) + 1}

CALLS = [
    (F.linear, rand(2, 3, 4), {"weight": rand(5, 4), "bias": rand(5)}, {}),
    (F.linear, rand(4), {"weight": rand(5, 4), **NO_BIAS}, {}),
    (torch.matmul, rand(2, 3, 4), {"other": rand(4, 5)}, {}),
    (F.conv1d, rand(2, 4, 9), {"weight": rand(6, 2, 3), "bias": rand(6)}, CONV),
    (F.conv2d, rand(2, 4, 9, 8), {"weight": rand(6, 2, 3, 3), **NO_BIAS}, CONV),
    (F.conv2d, rand(4, 9, 8), {"weight": rand(6, 4, 2, 3), **NO_BIAS}, {**CONV, "stride": (1, 1), "groups": 1}),
    (F.conv2d, rand(2, 4, 9, 8), {"weight": rand(6, 4, 2, 4), **NO_BIAS}, {**CONV, "stride": 1, "groups": 1}),
    (F.conv3d, rand(2, 4, 5, 5, 5), {"weight": rand(6, 2, 3, 3, 3), "bias": rand(6)}, CONV),
    (F.conv_transpose1d, rand(2, 4, 5), {"weight": rand(4, 3, 3), "bias": rand(6)}, TRANSPOSED),
    (F.conv_transpose2d, rand(2, 4, 5, 6), {"weight": rand(4, 3, 3, 2), **NO_BIAS}, TRANSPOSED),
    (F.conv_transpose3d, rand(2, 4, 4, 5, 6), {"weight": rand(4, 3, 3, 2, 2), **NO_BIAS}, TRANSPOSED),
    (F.embedding, torch.tensor([[3, 0], [1, 3]]), {"weight": rand(4, 3)}, {"padding_idx": -1, "sparse": False}),
    (F.embedding_bag, torch.tensor([[3, 0], [1, 3]]), {"weight": rand(4, 3)}, {"mode": "max", "padding_idx": -1}),
    *(
        (
            F.layer_norm,
            rand(2, 3, 4, 5),
            {"weight": rand(*shape), "bias": bias},
            {"normalized_shape": shape, "eps": 1e-3},
        )
        for shape, bias in (((5,), rand(5)), ((4, 5), None))
    ),
    *(
        (F.batch_norm, rand(*shape), {**STATISTICS, "weight": weight, "bias": bias}, NORM)
        for shape in ((3, 4), (3, 4, 5), (3, 4, 5, 6), (2, 4, 3, 3, 3))
        for weight, bias in ((None, None), (rand(4), rand(4)), (rand(4), None), (None, rand(4)))
    ),
]


@pytest.mark.parametrize(("function", "x", "tensors", "arguments"), CALLS)
def test_the_layer_computes_what_the_function_does(function, x, tensors, arguments):
    layer = LAYERS[function].build(tensors, arguments, x.dim())
    assert not layer.training
    if LAYERS[function].kinds:
        assert type(layer) in LAYERS[function].kinds
    with torch.no_grad():
        assert torch.equal(layer(x), function(x, **tensors, **arguments))


def test_parameters_are_kept_and_other_tensors_are_frozen():
    weight = nn.Parameter(rand(5, 4))
    layer = LAYERS[F.linear].build({"weight": weight, "bias": rand(5)}, {}, 2)
    assert layer.weight is weight
    assert not layer.bias.requires_grad


@pytest.mark.parametrize(
    ("function", "tensors", "arguments", "rank"),
    [
        (F.linear, {"weight": rand(4), "bias": None}, {}, 2),
        (torch.matmul, {"other": rand(2, 4, 5)}, {}, 3),
        (torch.matmul, {"other": rand(4)}, {}, 2),
        (F.layer_norm, {"weight": None, "bias": None}, {"normalized_shape": (4,), "eps": 1e-5}, 2),
        (F.batch_norm, {**STATISTICS, "weight": None, "bias": None}, {**NORM, "training": True}, 4),
        (F.batch_norm, {"running_mean": None, "running_var": None, "weight": None, "bias": None}, NORM, 4),
        (F.batch_norm, {**STATISTICS, "weight": None, "bias": None}, NORM, 6),
    ],
)
def test_what_no_layer_computes(function, tensors, arguments, rank):
    assert LAYERS[function].build(tensors, arguments, rank) is None


class Product(nn.Module):
    def __init__(self, product) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(rand(6, 7)), nn.Parameter(rand(6, 1))
        self.register_buffer("held", rand(6, 7))
        self.product = product

    def forward(self, x):
        return self.product(self, x)


PRODUCTS = {
    "parameter": lambda m, x: F.linear(x, m.weight),
    "view of a parameter": lambda m, x: x @ m.weight.T,
    "part of a parameter": lambda m, x: F.linear(x, m.weight[2:]),
    "computed": lambda m, x: F.linear(x, m.weight * m.factor),
    "view of what is computed": lambda m, x: x @ (m.weight * m.factor).t(),
    "buffer": lambda m, x: F.linear(x, m.held),
    "view of a buffer": lambda m, x: torch.matmul(x, m.held.t()),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_summed_in_the_order_of_the_function(name):
    """Of an input that is not dense, torch sums them in another order if the weight might be given a gradient."""
    torch.manual_seed(0)
    model = Product(PRODUCTS[name]).eval()
    x = torch.randn(5, 7, 9).transpose(1, 2)
    with torch.no_grad():
        assert torch.equal(fxq.prepare(model, x).graph_module(x), model(x))
