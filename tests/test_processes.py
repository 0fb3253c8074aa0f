"""Models that have run go to other processes, and run on here."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fxquant as fxq
from fxquant.kernels.library import available_isas
from fxquant.runtime import engine_of
from tests.sampling import one_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Conv2d(3, 40, 3), nn.PReLU(40), nn.Linear(40, 6)
        self.token = nn.Parameter(torch.randn(1, 1, 40))

    def forward(self, x):
        x = self.act(self.first(x)).flatten(2).transpose(1, 2)
        return self.last(torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1))


def image(seed: int):
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def converted(to: str | None):
    """A model that has run."""
    torch.manual_seed(0)
    prepared = fxq.calibrate(fxq.prepare(Net().eval(), image(0)), [image(0)], progress=False)
    model = fxq.prepare_qat(Net(), image(0)).eval() if to is None else fxq.convert(prepared, to=to)
    with torch.no_grad():
        for seed in range(3):
            model(image(seed))
    return model.apply(fxq.disable_observer)


class Spawning:
    """Stands for a process that is being made: it notes which files it shall have."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def duplicate_for_child(self, file: int) -> int:
        self.files.append(file)
        return file

    def DupFd(self, file: int) -> int:  # noqa: N802 (its name)
        return file


@pytest.fixture
def spawning() -> Iterator[Spawning]:
    process = Spawning()
    context.set_spawning_popen(process)
    yield process
    context.set_spawning_popen(None)


KINDS = ["int8", "fake_quant", "reference", None]


@pytest.mark.slow
@pytest.mark.parametrize("to", one_of(4, KINDS))
def test_memory_that_is_handed_over_lives_until_the_process_has_begun(spawning, to):
    model = converted(to)
    for _ in range(2):
        ForkingPickler.dumps(model)
        gc.collect()
        assert spawning.files
        assert len(set(spawning.files)) == len(spawning.files)  # a file that was closed is another one soon
        assert all(os.fstat(file).st_size for file in spawning.files)
        spawning.files.clear()


@pytest.mark.parametrize("to", KINDS)
def test_a_model_that_was_handed_over_runs_on(spawning, to):
    """The memory of its state has moved: programs read what lies there now."""
    model = converted(to)
    with torch.no_grad():
        wanted = [model(image(seed)) for seed in range(5)]
        ForkingPickler.dumps(model)
        others = [torch.randn(40) for _ in range(200)]  # where the state lay before
        assert all(torch.equal(model(image(seed)), wanted[seed]) for seed in range(5))
    assert len(others) == 200
    assert to != "int8" or not available_isas() or engine_of(model).plans[0].programs


def test_workers_of_a_data_loader_run_models():
    model, images = converted("int8").requires_grad_(False), [image(seed) for seed in range(3)]
    loader = DataLoader(images, batch_size=None, collate_fn=model, num_workers=1, multiprocessing_context="spawn")
    assert all(torch.equal(found, model(x)) for found, x in zip(loader, images, strict=True))
