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
from fxquant.errors import CalibrationError
from fxquant.kernels.library import available_isas
from fxquant.runtime import engine_of
from tests.sampling import one_of

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


@pytest.mark.parametrize("model", one_of(3, SEQUENCES))
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


class Score(nn.Module):
    """Returns one column of the logits: of one row, a single element with the stride of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(F.relu(self.first(x)))[:, 1]


@pytest.mark.parametrize("rows", [1, 3])
def test_one_score_of_a_row(rows):
    torch.manual_seed(0)
    engine = check_calls(Score(), [lambda: torch.randn(rows, 16)])
    assert in_python(engine) == set()


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[:, 1:],
    "step": lambda x: x[..., ::2],
    "chunk": lambda x: x.chunk(2, -1)[-1],
    "expand": lambda x: x[:, :1].expand(-1, 3, *(-1,) * (x.dim() - 2)),
    "transpose": lambda x: x.transpose(-1, -2),
    "permute": lambda x: x.permute(0, *range(x.dim() - 1, 0, -1)),
    "flip": lambda x: x.flip(-1),
    "unfold": lambda x: x.unfold(-1, 2, 1)[..., 0],
    "diagonal": lambda x: x.diagonal(dim1=-1, dim2=-2)[..., None],
    "crop": lambda x: x[..., :-1, 1:] if min(x.shape[-2:]) > 2 else x,
    "roll": lambda x: x.roll(1, -1),
    "pad": lambda x: F.pad(x, (1, 0)),
    "swap": lambda x: torch.cat((x[..., 1:], x[..., :1]), -1),
    "rows": lambda x: x.reshape(x.shape[0], -1, x.shape[-1]),
    "batch": lambda x: x[:1].expand_as(x),
}
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "mean": lambda x: x.mean(-1, keepdim=True),
    "mean of rows": lambda x: x.mean((1, 2), keepdim=True),
    "add": lambda x: x + x.flip(-1),
    "mul": lambda x: x * x[..., :1],
    "softmax": lambda x: F.softmax(x, -1),
    "max_pool": lambda x: F.max_pool1d(x.flatten(1, -2), 2) if x.shape[-1] > 1 else x,
    "avg_pool": lambda x: F.avg_pool1d(x.flatten(1, -2), 2) if x.shape[-1] > 1 else x,
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "cat": lambda x: torch.cat((x, x.sigmoid()), 1),
    "float": lambda x: torch.erfinv(x.clamp(-0.9, 0.9)),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}


class Drawn(nn.Module):
    """A layer, then views and operators as drawn; some values are given out as well."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.first, self.images = nn.Linear(6, 6), draw.random() < 0.5
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        kinds = [draw.choice([*VIEWS, *OPERATORS]) for _ in range(draw.randint(2, 8))]
        self.names = [draw.choice([*VIEWS]), *kinds]
        self.given = [draw.random() < 0.2 for _ in self.names]

    def forward(self, x):
        x = self.conv(x) if self.images else self.first(x)
        results = []
        for name, is_given in zip(self.names, self.given, strict=True):
            x = {**VIEWS, **OPERATORS}[name](x)
            if is_given:
                results.append(x)
        return x, results


DRAWN_INPUTS = (
    lambda: torch.randn(2, 3, 5, 6),
    lambda: torch.randn(1, 3, 5, 6),
    lambda: torch.randn(2, 3, 6, 5).transpose(2, 3),
    lambda: torch.randn(2, 6, 5, 12)[:, ::2, :, 1::2],
    lambda: torch.randn(2, 1, 5, 6).expand(2, 3, 5, 6),
    lambda: torch.randn(2, 3, 5, 6).contiguous(memory_format=torch.channels_last),
)


def check_drawn(seed: int) -> list[str] | None:
    """A drawn model by programs against its graph; None where float refuses what was drawn, else its parts."""
    torch.manual_seed(seed)
    model = Drawn(random.Random(seed)).eval()
    example = DRAWN_INPUTS[0]()
    try:
        model(example)
    except (RuntimeError, IndexError):
        return None
    try:
        programs, graph = twins(model, example)
    except CalibrationError:  # a value without elements
        return None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for _ in range(5):
            for make in DRAWN_INPUTS:
                x = make()
                for found, wanted in zip(leaves(programs(x)), leaves(graph(x)), strict=True):
                    assert torch.equal(found.nan_to_num(), wanted.nan_to_num()), model.names
                    assert found.stride() == wanted.stride(), model.names
    return model.names


def leaves(result) -> list[Tensor]:
    return [result[0], *result[1]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fxquant.errors.FxQuantWarning")
def test_drawn_views_and_operators():
    checked = [names for seed in range(12) if (names := check_drawn(seed)) is not None]
    assert len(checked) >= 6
