"""Which norms get a second one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.equalization.regions import find_regions
from fxquant.equalization.splitting import find_splits
from fxquant.plan.region import Split


class Block(nn.Module):
    """A norm that a layer reads, moved, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.up, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        return self.head(torch.tanh(x + self.up(x.transpose(0, 1)).transpose(0, 1)))


X = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))


def splits_of(model: nn.Module) -> tuple[Split, ...]:
    prepared = fxq.prepare(model.eval(), X)
    found = find_regions(prepared.graph_module, prepared.example_args, {}, with_data=True)
    return find_splits(prepared.graph_module, prepared.plan, found)


def test_a_layer_reads_it_and_something_that_cannot_be_scaled() -> None:
    assert splits_of(Block()) == (Split("norm", "norm_scaled", ("transpose",)),)


class Scalable(Block):
    """All that reads the sum can be scaled, so the norm needs no second one."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        return self.head(x + self.up(x))


class Twice(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class Alone(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.up(self.norm(x)))


class Dropped(Block):
    """What trains reads the norm through a dropout, which evaluation has not."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(x))
        return self.head(torch.tanh(x + self.up(x)))


@pytest.mark.parametrize("kind", [Scalable, Twice, Alone, Dropped])
def test_norms_that_get_none(kind: type[nn.Module]) -> None:
    assert splits_of(kind()) == ()
