"""How much each kind of layer must multiply, to be faster in int8 than in float though it stands alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.backends.break_even import CPU_BREAK_EVEN

ROWS = torch.rand(512, 64)


class Among(nn.Module):
    """A layer between float operators, in a model with another one that is worth its borders."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.big = layer, nn.Linear(64, 64)

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.special.i0(self.layer(torch.special.i0(x))), self.big(rows)


def fate(layer: nn.Module, *shape: int) -> str:
    """What becomes of a layer between float operators, and why."""
    rows = fxq.prepare(Among(layer).eval(), (torch.rand(shape), ROWS)).coverage().rows
    return next((row.reason or row.fate) for row in rows if row.module == "layer")


FEW = "slower in int8 alone: {:,} products in all, and a call pays from 4,096 on"
PER_VALUE = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and {:.0f} pay"


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(32, 64), (1, 32), FEW.format(2048)),
        (nn.Linear(16, 1), (4096, 16), PER_VALUE.format(0.9, 2)),
        (nn.Linear(64, 64), (512, 64), "int8"),
        (nn.Conv2d(3, 3, 1), (1, 3, 224, 224), PER_VALUE.format(1.5, 10)),
        (nn.Conv2d(16, 16, 1), (1, 16, 56, 56), PER_VALUE.format(8.0, 10)),
        (nn.Conv2d(64, 1, 1), (1, 64, 56, 56), PER_VALUE.format(1.0, 10)),
        (nn.Conv2d(64, 64, 1), (1, 64, 56, 56), "int8"),
        (nn.Conv2d(64, 64, 3, padding=1, groups=64), (1, 64, 56, 56), "int8"),
        (nn.Conv2d(16, 1, 3, padding=1), (1, 16, 56, 56), "int8"),
        (nn.Conv1d(4, 4, 1), (1, 4, 8192), PER_VALUE.format(2.0, 10)),
        (nn.ConvTranspose2d(16, 16, 2, 2), (1, 16, 28, 28), PER_VALUE.format(12.8, 32)),
        (nn.ConvTranspose2d(16, 16, 3), (1, 16, 28, 28), "int8"),
    ],
)  # fmt: skip
def test_layers_between_float_operators(layer, shape, expected):
    assert fate(layer, *shape) == expected


def test_a_product_of_two_values_quantizes_both():
    graph = torch.fx.Graph()
    node = graph.call_function(torch.matmul, (graph.placeholder("a"), graph.placeholder("b")))
    assert CPU_BREAK_EVEN.per_value(node) == 24
