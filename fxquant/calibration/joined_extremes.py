"""The smallest and the largest value, of what calibration need not choose a grid for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.observers.base import keeping_dtype


class Extremes(nn.Module):
    """Keeps the smallest and the largest finite value of all batches.

    Buffer: ``ends`` float32 [2], in real units; inf and -inf if there was none.
    """

    ends: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.tensor([torch.inf, -torch.inf]))
        self._seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Look at ``x``, float of any shape, and return it. It counts once ``keep`` is called."""
        if x.numel():
            low, high = torch.aminmax(x.detach())
            if not bool((high - low).isfinite()):  # NaN, infinite, or so wide that the difference is
                finite = x.detach().isfinite()
                low, high = torch.where(finite, x, torch.inf).amin(), torch.where(finite, x, -torch.inf).amax()
            self._seen = torch.stack([low, high]).float()
        return x

    def keep(self) -> None:
        """Take note of what the last call saw: the batch has run to its end."""
        if self._seen is not None:
            self._widen(self._seen.to(self.ends.device))
            self._seen = None

    def forget(self) -> None:
        """Take no note of it: the batch has failed."""
        self._seen = None

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what several copies of this one have seen; ``states`` is the ``state_dict()`` of each."""
        for state in states:
            self._widen(state["ends"].to(self.ends.device))

    def _widen(self, ends: Tensor) -> None:
        self.ends.copy_(torch.stack([torch.minimum(self.ends[0], ends[0]), torch.maximum(self.ends[1], ends[1])]))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Extremes:
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if f"{prefix}ends" in state_dict:  # states from before these were kept lack them
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
