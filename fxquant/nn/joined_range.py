"""How far a value reaches that a join takes: watched while a model trains, since it may have no grid of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.observers.base import keeping_dtype

AVERAGING = 0.01
"""Weight of a batch, as in moving averages of ranges."""


class JoinedRange(nn.Module):
    """Gives back its input, and keeps a moving average of the smallest and the largest value of each call.

    Buffer: ``ends`` float32 [2], in real units; NaN before the first call.
    """

    ends: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.full((2,), torch.nan))

    def forward(self, x: Tensor) -> Tensor:
        """``x``, float of any shape. A call with values that are not finite leaves the average as it is."""
        if x.numel():
            with torch.no_grad():
                ends = torch.stack(torch.aminmax(x.detach())).to(self.ends)
                averaged = torch.where(self.ends.isnan(), ends, torch.lerp(self.ends, ends, AVERAGING))
                self.ends.copy_(torch.where(ends.isfinite().all(), averaged, self.ends))
        return x

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take the mean of what several copies have averaged; ``states`` is the ``state_dict()`` of each."""
        seen = [ends for state in states if bool((ends := state["ends"]).isfinite().all())]
        if seen:
            self.ends.copy_(torch.stack(seen).mean(0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> JoinedRange:
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if f"{prefix}ends" in state_dict:  # states from before these were kept lack them
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
