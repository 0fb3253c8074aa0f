"""Graphs that differ by more than names have other hashes."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx import symbolic_trace

from tests.fuzz.fingerprint import fingerprint


class Model(nn.Module):
    def __init__(self, name: str, kernel: int = 3) -> None:
        super().__init__()
        self.add_module(name, nn.Conv2d(2, 2, kernel))
        self.name = name

    def forward(self, x):
        return torch.relu(self.get_submodule(self.name)(x)) + 1


class Other(Model):
    def forward(self, x):
        return torch.relu(self.get_submodule(self.name)(x)) + 2


def test_names_do_not_count():
    assert fingerprint(symbolic_trace(Model("a"))) == fingerprint(symbolic_trace(Model("b")))


def test_geometry_and_numbers_count():
    hashes = {fingerprint(symbolic_trace(each)) for each in (Model("a"), Model("a", 1), Other("a"))}
    assert len(hashes) == 3
