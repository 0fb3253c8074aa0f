"""Operators that read slices, expanded and transposed tensors: the graph's bits at any shape and address."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.engine import engine_of
from fxquant.kernels.library import available_isas

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")


class Between(nn.Module):
    """Layers around what a test wants, on [N, L, 16]."""

    def __init__(self, between: Callable[[Tensor], Tensor], width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(width, 8)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


class Images(nn.Module):
    """The same on [N, 3, H, W], with 16 channels inside."""

    def __init__(self, between: Callable[[Tensor], Tensor], width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(width, 8, 1)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def gated(x):
    a, b = x.chunk(2, -1)
    return a * F.silu(b)


def rotary(x):
    angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.5, 0.25, 0.125, 0.1, 0.05, 0.02, 0.01])
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()), -1)


def half_rotated(x):
    a, b = x.chunk(2, -1)
    return x + torch.cat((-b, a), -1)


def excited_by_a_slice(x):
    return x * x[:, :, 1:].mean((2, 3), keepdim=True).sigmoid()


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x):
        return F.relu(torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1)[:, :1])


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x[..., ::2]) + self.norm(x[..., 1::2])


SEQUENCES = [
    Between(gated, 8),
    Between(lambda x: F.gelu(x[..., 8:]) * x[..., :8].sigmoid(), 8),
    Between(rotary),
    Between(half_rotated),
    Between(Token()),
    Between(Norm(), 8),
    Between(lambda x: F.relu(x.transpose(1, 2)).transpose(1, 2)),
    Between(lambda x: F.relu(x[:, :1].expand(-1, 3, -1))),
    Between(lambda x: F.softmax(x[..., :8] @ x[..., 8:].transpose(1, 2), -1) @ x),
    Between(lambda x: F.hardswish(x[:, ::2]) + x[:, ::2].mean(1, keepdim=True)),
    Between(lambda x: F.relu(x.unflatten(-1, (4, 4)).transpose(-1, -2)).flatten(-2)),
]
IMAGES = [
    Images(excited_by_a_slice),
    Images(lambda x: F.relu(x[:, :, 1:-1, 1:-1])),
    Images(lambda x: F.max_pool2d(x[..., 1:], 2) + F.avg_pool2d(x[..., 1:], 2)),
    Images(lambda x: F.hardswish(x.transpose(2, 3))),
    Images(lambda x: F.adaptive_avg_pool2d(x[:, ::2], 2).tanh(), 8),
    Images(lambda x: F.relu(x.flip(3))),
    Images(lambda x: F.interpolate(F.relu(x)[:, :, ::2, 1:], scale_factor=2.0, mode="bilinear")),
]
WIDE = torch.randn(5, 9, 40)
SEQUENCE_INPUTS = (
    lambda: torch.randn(4, 5, 16),
    lambda: torch.randn(2, 3, 16),
    lambda: torch.randn(4, 5, 32)[..., ::2],
    lambda: torch.randn(1, 5, 16).expand(4, 5, 16),
    lambda: torch.randn(5, 4, 16).transpose(0, 1),
    lambda: torch.randn(4, 16, 5).transpose(1, 2),
    lambda: WIDE[:4, 2:7, random.randrange(20) :][..., :16],  # at another address each time
)
IMAGE_INPUTS = (
    lambda: torch.randn(2, 3, 8, 8),
    lambda: torch.randn(1, 3, 10, 6),
    lambda: torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),
    lambda: torch.randn(2, 3, 8, 8).transpose(2, 3),
    lambda: torch.randn(2, 6, 16, 8)[:, ::2, ::2],
    lambda: torch.randn(1, 3, 8, 8).expand(2, 3, 8, 8),
    lambda: torch.randn(2, 3, 1, 8).expand(2, 3, 8, 8),
)


def twins(model: nn.Module, example: Tensor):
    """A model that runs by programs, and the same as a graph."""
    prepared = fxq.calibrate(fxq.prepare(model.eval(), example), [example], progress=False)
    return fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")


def check_calls(model: nn.Module, inputs, rounds: int = 5):
    """Five calls of each kind of input, one after the other; nothing may be warned of."""
    programs, graph = twins(model, inputs[0]())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for _ in range(rounds):
            for make in inputs:
                x = make()
                found, wanted = programs(x), graph(x)
                assert torch.equal(found, wanted)
                assert found.stride() == wanted.stride()
    return engine_of(programs)


def in_python(engine) -> set[str]:
    return {name for plan in engine.plans for name, _ in plan.in_python}


@pytest.mark.parametrize("model", SEQUENCES)
def test_parts_of_sequences(model):
    torch.manual_seed(0)
    engine = check_calls(model, SEQUENCE_INPUTS)
    assert all(len(plan.programs) == 1 for plan in engine.plans)
    assert in_python(engine) == set()


@pytest.mark.parametrize("model", IMAGES)
def test_parts_of_images(model):
    torch.manual_seed(0)
    engine = check_calls(model, IMAGE_INPUTS)
    assert all(len(plan.programs) == 1 for plan in engine.plans)
    assert in_python(engine) == set()
