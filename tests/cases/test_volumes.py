"""Layers and networks over volumes: int8 is near float, and has the same bits in every call, by programs and graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.kernels.library import available_isas, use_isa
from fxquant.measure.noise import sqnr

CALLS = 5
NEAR = 30.0
"""Decibels: 8 bits of values that are spread evenly have about 40, a few layers take some of that."""


class Volumes(nn.Module):
    """What U-Nets and video networks of volumes are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv3d(1, 6, (3, 5, 5), (1, 2, 2), (1, 2, 2), bias=False), nn.BatchNorm3d(6)
        self.planes = nn.Conv3d(6, 6, (3, 1, 1), padding=(1, 0, 0), groups=6)
        self.mixed = nn.Conv3d(6, 6, 1)
        self.down, self.up = nn.Conv3d(6, 10, 2, 2), nn.ConvTranspose3d(10, 6, 2, 2)
        self.last = nn.Conv3d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.mixed(F.hardswish(self.planes(x))))
        return self.last(torch.cat([x, self.up(F.relu(self.down(x)))], 1))


MODELS = {
    "groups": (nn.Conv3d(2, 4, (1, 2, 3), (1, 1, 2), (0, 1, 1), groups=2), (2, 2, 6, 4, 2)),
    "one result": (nn.Conv3d(8, 1, (2, 1, 2), (1, 1, 2), (1, 0, 0), (1, 1, 2)), (2, 8, 2, 4, 4)),
    "transposed": (nn.ConvTranspose3d(4, 6, (2, 3, 3), (1, 2, 2), (0, 1, 1), (0, 1, 1)), (2, 4, 3, 4, 5)),
    "a network": (Volumes(), (1, 1, 4, 12, 12)),
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_call_is_near_float_and_the_same_on_every_instruction_set(name: str) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]
    batches = [torch.randn(shape) for _ in range(CALLS)]
    prepared = fxq.calibrate(fxq.prepare(model.eval(), batches[0]), batches, progress=False)
    graph = fxq.convert(prepared, engine="graph")
    wanted = [graph(x) for x in batches]

    for x, y in zip(batches, wanted, strict=True):
        assert sqnr(model(x), y) > NEAR
    for isa in available_isas():
        with use_isa(isa):
            program = fxq.convert(prepared)
            for x, y in zip(batches, wanted, strict=True):
                assert torch.equal(graph(x), y), isa
                assert torch.equal(program(x), y), isa
