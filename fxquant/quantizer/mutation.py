"""Tells whether a model's weights are still those that they were: by checksums, so that nothing is kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import listing, warn

Checksum = tuple[tuple[int, ...], str, int, int]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(model: nn.Module) -> dict[str, Checksum]:
    """Shape, dtype and two sums over the bits of each float parameter and buffer of a module, under its name.

    One sum is of all values, one of every second value. They are exact, whatever the number of threads.
    """
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: _checksum(tensor) for name, tensor in tensors if tensor.is_floating_point() and not tensor.is_meta}


def changed(before: Mapping[str, Checksum], model: nn.Module) -> list[str]:
    """Name the tensors that are gone or new, or whose values are others; not those that were only cast."""
    now = checksums(model)
    names = dict.fromkeys((*before, *now))
    return [name for name in names if not _same(before.get(name), now.get(name))]


class WeightChecksums:
    """Holds the weights of a model when it was prepared, and those of the prepared graph when values were measured.

    Args:
        model: What ``prepare`` was given. It is not kept alive, and is not known any more after copying or pickling.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = weakref.ref(model)
        self._prepared = checksums(model)
        self._measured: Mapping[str, Checksum] | None = None

    def record(self, gm: nn.Module, *, anew: bool = False) -> None:
        """Note that values are measured with the weights that the graph has now; the first time counts."""
        if self._measured is None or anew:
            self._measured = checksums(gm)

    def warn_if_changed(self, gm: nn.Module, written: Iterable[str]) -> None:
        """Warn, once, if the model is no longer what was prepared; and if the graph is not what was measured with.

        ``written`` names buffers that running either of them changes.
        """
        model, in_calls = self._model(), set(written)
        names = [] if model is None else changed(self._prepared, model)
        if names := [name for name in names if name not in in_calls]:
            self._model = _gone
            warn(
                "the model was changed after prepare; what is converted is the copy that prepare took of it",
                got=listing(names),
                hint="call prepare and calibrate again to quantize the model as it is now",
            )
        names = [] if self._measured is None else changed(self._measured, gm)
        if names := [name for name in names if name not in in_calls]:
            warn(
                "weights were changed after calibration: the ranges are those of values that the former ones made",
                got=listing(names),
                hint="calibrate a newly prepared model",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": _gone}


def _gone() -> None:
    """Stand in the place of a reference to the model."""


def _checksum(tensor: Tensor) -> Checksum:
    values = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).flatten()
    return tuple(tensor.shape), str(tensor.dtype), int(values.sum()), int(values[::2].sum())


def _same(before: Checksum | None, now: Checksum | None) -> bool:
    if before is None or now is None:
        return False
    return before == now or (before[0] == now[0] and before[1] != now[1])
