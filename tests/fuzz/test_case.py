"""A model is tried on inputs that torch computes right."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from tests.fuzz.case import Case
from tests.fuzz.source import Input


class Unshuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(12), nn.Conv2d(12, 4, 1)

    def forward(self, x):
        return self.norm(F.pixel_unshuffle(x, 2))


class Convolved(Unshuffled):
    def forward(self, x):
        return self.conv(x)


def test_an_empty_batch_whose_shape_torch_loses_is_no_input():
    case = Case(Unshuffled, (Input("x", (1, 3, 2, 2)),), 0, "")
    assert "empty" not in case.variants
    assert case.skipped["empty input, whose shape float loses"] == 1
    assert "empty" in Case(Convolved, (Input("x", (1, 12, 2, 2)),), 0, "").variants
