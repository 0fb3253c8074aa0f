"""Multiply-accumulates, against those that torch counts while the model runs (it counts two operations for each)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fxquant.graph.macs import multiply_accumulates
from fxquant.graph.tracing import trace

IMAGE = torch.rand(2, 4, 9, 7)


class Body(nn.Module):
    """A model whose forward is a function of its inputs, with a few tensors of its own."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        self.weight = nn.Parameter(torch.rand(6, 2, 3, 3))

    def forward(self, a):
        return self.body(self, a)


class Body2(Body):
    """The same with two inputs."""

    def forward(self, a, b):
        return self.body(self, a, b)


def counted(model: nn.Module, *inputs: torch.Tensor) -> int:
    gm = trace(model.eval(), example_args=inputs)
    return sum(multiply_accumulates(node) for node in gm.graph.nodes)


def counted_by_torch(model: nn.Module, *inputs: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*inputs)
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Conv2d(4, 6, 3), (IMAGE,)),
        (nn.Conv2d(4, 6, (3, 1), stride=2, padding=1, dilation=2, groups=2), (IMAGE,)),
        (nn.Conv2d(4, 4, 3, groups=4), (IMAGE,)),
        (nn.Conv1d(4, 6, 3), (torch.rand(2, 4, 9),)),
        (nn.Conv3d(4, 6, 2), (torch.rand(1, 4, 5, 4, 3),)),
        (nn.Conv2d(4, 6, 3), (IMAGE[0],)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (IMAGE,)),
        (nn.ConvTranspose1d(4, 6, 3, output_padding=1, stride=2), (torch.rand(2, 4, 9),)),
        (nn.Linear(7, 5), (IMAGE,)),
        (nn.Linear(7, 5), (torch.rand(7),)),
        (nn.Linear(7, 5, bias=False), (torch.rand(2, 7),)),
        (Body(lambda m, x: F.conv2d(x, m.weight, None, 1, 1, 1, 2)), (IMAGE,)),
        (Body(lambda m, x: F.linear(x, m.weight.reshape(9, 12))), (torch.rand(5, 12),)),
        (Body2(lambda m, a, b: torch.matmul(a, b)), (torch.rand(2, 3, 4), torch.rand(2, 4, 5))),
        (Body2(lambda m, a, b: torch.matmul(a, b)), (torch.rand(3, 2, 3, 4), torch.rand(4, 5))),
        (Body2(lambda m, a, b: torch.bmm(a, b)), (torch.rand(2, 3, 4), torch.rand(2, 4, 5))),
        (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(210, 3)), (IMAGE,)),
    ],
    ids=lambda value: str(value).split("\n")[0] if isinstance(value, nn.Module) else "",
)
def test_as_torch_counts(model, inputs):
    expected = counted_by_torch(model, *inputs)
    assert expected > 0
    assert counted(model, *inputs) == expected


def test_a_dot_product():
    assert counted(Body2(lambda m, a, b: torch.matmul(a, b)), torch.rand(4), torch.rand(4)) == 4


class Einsum(nn.Module):
    def forward(self, a, b):
        return torch.einsum("B I D, B J D -> B I J", a, b), torch.einsum("b i d -> b d i", a)


def test_an_einsum_of_two_tensors():
    gm = trace(Einsum(), example_args=(torch.rand(2, 3, 4), torch.rand(2, 5, 4)))
    counts = [multiply_accumulates(node) for node in gm.graph.nodes if node.target is torch.einsum]
    assert counts == [2 * 3 * 5 * 4, 0]


def test_an_input_by_keyword():
    assert counted(Body(lambda m, x: F.conv2d(input=x, weight=m.weight, groups=2)), IMAGE) == 2 * 6 * 7 * 5 * 2 * 9
    body = Body(lambda m, x: m.up(input=x))
    body.up = nn.ConvTranspose2d(4, 6, 3)
    assert counted(body, IMAGE) == IMAGE.numel() * 6 * 9


def test_a_subclass_that_computes_the_same():
    class Named(nn.Linear):
        """Changes nothing."""

    assert counted(nn.Sequential(Named(7, 5)), IMAGE) == IMAGE.numel() * 5


@pytest.mark.parametrize(
    "body",
    [lambda m, x: x + x, lambda m, x: F.max_pool2d(x, 2), lambda m, x: x.relu().sum(), lambda m, x: x.chunk(2)],
)
def test_what_is_no_sum_of_products_costs_nothing(body):
    assert counted(Body(body), IMAGE) == 0


class Attention(nn.Module):
    """Attention of one sequence to another, or to itself."""

    def __init__(self, own: bool, **options) -> None:
        super().__init__()
        self.own = own
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, a, b):
        other = a if self.own else b
        return self.attention(a, other, value=other, need_weights=True)[0]


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Attention(True), (torch.rand(5, 3, 8), torch.rand(1))),
        (Attention(True, batch_first=True), (torch.rand(5, 3, 8), torch.rand(1))),
        (Attention(False), (torch.rand(5, 3, 8), torch.rand(7, 3, 8))),
        (Attention(False), (torch.rand(5, 8), torch.rand(7, 8))),
        (Attention(False, kdim=6, vdim=6), (torch.rand(5, 3, 8), torch.rand(7, 3, 6))),
    ],
    ids=["itself", "batch first", "another", "one sequence", "narrow keys"],
)
def test_attention_as_torch_counts(model, inputs):
    model.eval()
    with FlopCounterMode(
        display=False
    ) as counter:  # with gradients, so that torch does not take its uncounted fast path
        model(*inputs)
    assert counted(model, *inputs) == counter.get_total_flops() // 2


def test_a_product_of_queries_keys_and_values_as_torch_counts():
    class Product(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    given = (torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8), torch.rand(2, 3, 7, 6))
    assert counted(Product(), *given) == counted_by_torch(Product(), *given) > 0


class Last(nn.Module):
    """A recurrent layer, of whose outputs one is used."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize(
    ("layer", "matrices"),
    [
        (nn.LSTM(4, 6), 4 * (6 * 4 + 6 * 6)),
        (nn.GRU(4, 6, num_layers=2, bidirectional=True), 2 * 3 * (6 * 4 + 6 * 6) + 2 * 3 * (6 * 12 + 6 * 6)),
        (nn.RNN(4, 6, bias=False), 6 * 4 + 6 * 6),
    ],
    ids=["LSTM", "GRU", "RNN"],
)
def test_recurrent_layers_multiply_with_all_matrices_at_each_step(layer, matrices):
    assert counted(Last(layer), torch.rand(5, 3, 4)) == 5 * 3 * matrices
