"""One of two processes that calibrate and train together: ``python ranks.py RANK FOLDER``; see ``test_distributed``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.observers import ObserverBase, choose_qparams
from fxquant.plan.spec import QParams, QScheme

WORLD = 2


def float_model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    return nn.Sequential(*layers).train()


def batch(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(4, 3, 8, 8, generator=generator) * (1 + rank)


def observers() -> dict[str, ObserverBase]:
    return {
        "extremes": fxq.MinMaxObserver(),
        "average": fxq.MovingAverageMinMaxObserver(averaging_constant=0.5),
        "histogram": fxq.HistogramObserver(),
    }


def bare(rank: int) -> dict[str, Any]:
    """Observers alone, synchronized twice."""
    made = nn.ModuleDict(observers())
    for observer in made.values():
        observer(torch.tensor([[0.0, 1.0], [-4.0, 2.0]][rank]))
    for _ in range(2):
        fxq.synchronize_observers(made)
    return {name: (observer.state_dict(), observer.calculate_qparams()) for name, observer in made.items()}


def calibrated(rank: int) -> dict[str, Any]:
    """A model of which each process calibrates on its own part of the data."""
    prepared = fxq.prepare(float_model().eval(), batch(0, 0))
    for step in range(2):
        prepared.observe(batch(rank, step))
    fxq.synchronize_observers(prepared)
    return {"state": prepared.state_dict(), "y": fxq.convert(prepared)(batch(0, 9))}


class Largest(ObserverBase):
    """Somebody's own, which says nothing of other processes."""

    def __init__(self) -> None:
        super().__init__(QScheme(symmetric=True), dtype=torch.int8)
        self.register_buffer("magnitude", torch.tensor(0.0))

    def update(self, x: Tensor) -> None:
        self.magnitude.copy_(torch.maximum(self.magnitude, x.abs().max()))

    def qparams(self) -> QParams:
        return choose_qparams(-self.magnitude, self.magnitude, self.scheme)


class LargestOfAll(Largest):
    """As the recipe says."""

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        self.magnitude.copy_(torch.stack([state["magnitude"] for state in states]).max())


class OwnCount(fxq.MinMaxObserver):
    """Inherits a pool that does not know of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.tensor(0))

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.batches += x.numel()


def of_users(rank: int) -> dict[str, Any]:
    """Observers of the user's own in a prepared model, in a trained one, and alone."""
    found: dict[str, Any] = {}
    for kind in (Largest, LargestOfAll, OwnCount):
        qconfig = fxq.QConfig(
            activation=kind, weight=fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
        )
        prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 3)).eval(), torch.ones(2, 4), qconfig, backend="reference")
        prepared.observe(torch.full((2 + rank, 4), 2.0 * (1 + rank)))
        qat = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 3)).train(), torch.ones(2, 4), qconfig, backend="reference")
        qat(torch.full((2 + rank, 4), 2.0 * (1 + rank)))
        for name, model in (("prepared", prepared), ("trained", qat)):
            try:
                fxq.synchronize_observers(model)
            except InputError as error:
                found[f"{kind.__name__} {name}"] = str(error)
        if kind is LargestOfAll:
            found["scales"] = (prepared.observers["input_1"].calculate_qparams()[0], qat.input_1_fake_quant.scale)
    fixed = nn.ModuleList((fxq.FixedQParamsObserver(0.5, 3), fxq.PlaceholderObserver(), fxq.NoopObserver()))
    fxq.synchronize_observers(fixed)
    return {**found, "fixed": fixed[0].calculate_qparams()}


def outside(rank: int) -> dict[str, Any]:
    """Observers of which the second process is in no group."""
    made = fxq.MinMaxObserver()
    made(torch.tensor([0.0, 1.0 + rank]))
    fxq.synchronize_observers(made, distributed.new_group([0]))
    return {"max_val": made.max_val}


def trained(rank: int) -> dict[str, Any]:
    """Three steps; the first process alone turns observers off before the third."""
    model = DistributedDataParallel(fxq.prepare_qat(float_model(), batch(0, 0)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(3):
        if step == 2 and rank == 0:
            model.apply(fxq.disable_observer)
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        optimizer.step()
        if step == 1:
            fxq.synchronize_observers(model)
            measured = model.module.state_dict()
            measured = {name: value.clone() for name, value in measured.items()}
    fxq.synchronize_observers(model)
    if rank:
        return {"measured": measured, "state": model.module.state_dict()}
    int8 = fxq.convert(model.module, check=batch(0, 9))
    return {"measured": measured, "state": model.module.state_dict(), "breaches": int8.parity.breaches}


def learned(rank: int) -> dict[str, Any]:
    """Step sizes that begin with what all processes saw, and learn from the gradients of all."""
    qat = fxq.prepare_qat(float_model(), batch(0, 0), fxq.get_lsq_qconfig(4, 4))
    qat(batch(rank, 0))
    fxq.synchronize_observers(qat)
    first = {name: value.clone() for name, value in qat.state_dict().items()}
    qat.apply(fxq.enable_param_learning)
    model = DistributedDataParallel(qat)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(2):
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        optimizer.step()
    return {"first": first, "parameters": dict(qat.named_parameters())}


if __name__ == "__main__":
    own, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", meeting, timedelta(minutes=5), rank=own, world_size=WORLD)
    done = {story.__name__: story(own) for story in (bare, of_users, outside, calibrated, trained, learned)}
    torch.save(done, folder / f"{own}.pt")
    distributed.destroy_process_group()
