"""Base of the modules that multiply by an integer weight: they keep it in one order, its own or that of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import Tensor

from fxquant.nn.base import DERIVING, QuantizedModule


class WeightedModule(QuantizedModule):
    """A module with an int8 weight.

    The weight is a buffer until the first call. Where a kernel packs it, only the packed order is kept from then on,
    and the module has no such buffer: the weight would lie in memory twice. State dicts, copies and pickles hold it in
    its own order all the same, and so does the attribute ``weight``: reading it brings the buffer back, for as long as
    nothing is derived anew. What is written into it counts after :meth:`invalidate`, as for any buffer. What is written
    into the tensor of a state dict does not reach the module.
    """

    weight_shape: torch.Size
    """Of the weight, in its own order."""

    def add_weight(self, integers: Tensor) -> None:
        """Keep a weight."""
        self.weight_shape = integers.shape
        self._keep(integers)

    @property
    def weight(self) -> Tensor:
        """int8, as the float layer has it."""
        with DERIVING:
            plain = self.plain_weight()
            self._keep(plain)
        return plain

    @weight.setter
    def weight(self, integers: Tensor) -> None:
        self._keep(integers)

    def plain_weight(self) -> Tensor:
        """The weight in its own order, which the module need not keep."""
        with DERIVING:
            if (plain := self._buffers.get("weight")) is not None:
                return plain
            unpack = unpacking(self._packed)
            assert unpack is not None
            return unpack()

    def packed(self) -> Any:
        """As for any module; then the weight is kept in packed order, if there is one."""
        self.check_capture()
        with DERIVING:
            found = super().packed()
            if unpacking(found) is not None:
                self._keep(None)
        return found

    def invalidate(self) -> None:
        """Drop what was derived, but not the weight."""
        with DERIVING:
            self._keep(self.plain_weight())
            super().invalidate()

    def _keep(self, plain: Tensor | None) -> None:
        """Have this buffer, before all others, or none."""
        others = {name: buffer for name, buffer in self._buffers.items() if name != "weight"}
        self.__dict__["_buffers"] = others if plain is None else {"weight": plain, **others}  # at once, for all threads

    @contextmanager
    def _with_plain_weight(self) -> Iterator[None]:
        """For a while the buffer is there."""
        with DERIVING:
            kept = self._buffers.get("weight")
            self._keep(self.plain_weight())
            try:
                yield
            finally:
                self._keep(kept)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WeightedModule:
        self.invalidate()
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.invalidate()
        super()._load_from_state_dict(*args, **kwargs)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with self._with_plain_weight():
            super()._save_to_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        with DERIVING:
            plain = self.plain_weight()
            if get_spawning_popen() is not None:  # the new process is handed the memory later than this returns
                self._keep(plain)
        return {**super().__getstate__(), "_buffers": {"weight": plain, **self._buffers}}


def unpacking(run: Any) -> Callable[[], Tensor] | None:
    """What gives back the weight that a kernel was made of, in its own order; None where it does not hold it."""
    return getattr(run, "unpacked", None)
