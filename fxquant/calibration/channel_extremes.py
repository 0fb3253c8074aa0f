"""Keeps the smallest and the largest value of each channel, and of each value that is joined, during calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.observers.base import keeping_dtype

SAMPLE = 1 << 14
"""Values of a tensor that are looked at in a call."""
FEWEST = 16
"""Of them, values of each channel."""


class ChannelExtremes(nn.Module):
    """Finds channels that always hold one and the same value; and samples how far the others reach.

    Sampled are ``SAMPLE`` values of a call. A channel in which they are all the same, and the same as before, is looked
    at whole: what is called dead held one value in all calls, and a channel that is alive soon costs nothing.

    Buffers: ``low`` and ``high`` float32 [C], of the float values that were looked at; inf and -inf where none
    was finite ([0] before the first call). ``count`` int64 [], values of one channel in all calls.

    Args:
        axis: The dimension that counts the channels; negative, so that a batch dimension may be missing.
    """

    low: Tensor
    high: Tensor
    count: Tensor

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("low", torch.zeros(0))
        self.register_buffer("high", torch.zeros(0))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self._seen: tuple[Tensor, Tensor, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Look at ``x``, float of any shape that has the axis, and return it. It counts once ``keep`` is called."""
        if x.dim() >= -self.axis and x.numel():
            self._seen = self._look(x.detach())
        return x

    def keep(self) -> None:
        """Take note of what the last call saw: the batch has run to its end."""
        if self._seen is not None:
            self.low, self.high = (end.to(self.low.device) for end in self._seen[:2])
            self.count += self._seen[2]
            self._seen = None

    def forget(self) -> None:
        """Take no note of it: the batch has failed."""
        if self._seen is not None:
            self._seen = None

    def has_suspects(self) -> bool:
        """Tell whether some channels may be dead."""
        return not bool((self.low < self.high).all())

    def _look(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the range of each channel, with what was known before, and how many values each one has."""
        axis = x.dim() + self.axis
        channels = x.shape[axis]
        if self.low.numel() == channels:
            low, high = self.low.to(x.device, copy=True), self.high.to(x.device, copy=True)
        else:
            low, high = (torch.full((channels,), end, device=x.device) for end in (torch.inf, -torch.inf))
        _widen(low, high, *_extremes(_sample(x, axis), axis))
        suspects = torch.nonzero(~(low < high)).flatten()
        if len(suspects):
            low_of, high_of = low[suspects], high[suspects]
            _widen(low_of, high_of, *_extremes(x.index_select(axis, suspects), axis))
            low[suspects], high[suspects] = low_of, high_of
        return low, high, x.numel() // channels

    def look_alone(self, x: Tensor) -> tuple[Tensor, ...] | None:
        """Look at ``x`` as if nothing were known before; None where there is nothing to look at.

        Returns:
            What ``take_alone`` takes: the range of the sample and the whole range of each channel, float32 [C] each,
            the latter inf and -inf where the sample has several values; and int64 [], how many values each one has.
        """
        if x.dim() < -self.axis or not x.numel():
            return None
        axis = x.dim() + self.axis
        unseen = torch.full((x.shape[axis],), torch.inf, device=x.device)
        low, high = unseen.clone(), -unseen
        _widen(low, high, *_extremes(_sample(x, axis), axis))
        whole_low, whole_high = unseen.clone(), -unseen
        suspects = torch.nonzero(~(low < high)).flatten()
        if len(suspects):
            whole_low[suspects], whole_high[suspects] = _extremes(x.index_select(axis, suspects), axis)
        return low, high, whole_low, whole_high, torch.tensor(x.numel() // x.shape[axis])

    def take_alone(self, low: Tensor, high: Tensor, whole_low: Tensor, whole_high: Tensor, count: Tensor) -> None:
        """Take note of what ``look_alone`` saw, with the same result as a call with these values, and ``keep``."""
        low, high = low.clone(), high.clone()
        if self.low.numel() == low.numel():
            _widen(low, high, self.low, self.high)
        # A channel of which several values are known is not looked at whole.
        suspects = ~(low < high)
        self.low = torch.where(suspects, torch.minimum(low, whole_low), low)
        self.high = torch.where(suspects, torch.maximum(high, whole_high), high)
        self.count += count

    def constant(self) -> Tensor:
        """bool [C]: the channels that held one and the same value, always. [0] if nothing was seen."""
        return self.low == self.high

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what several copies of this one have seen, each a part of the data, for what this one has seen.

        Args:
            states: The ``state_dict()`` of each, this one's among them, in any order. Of ``count`` the largest is
                taken, so that nothing counts twice.
        """
        seen = [state for state in states if state["low"].numel()]
        if not seen:
            return
        device = self.low.device
        self.low = torch.stack([state["low"] for state in seen]).amin(0).to(device)
        self.high = torch.stack([state["high"] for state in seen]).amax(0).to(device)
        self.count.copy_(torch.stack([state["count"] for state in seen]).amax())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ChannelExtremes:
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "low")
        if isinstance(saved, Tensor) and saved.dim() == 1:
            self.low.resize_(saved.shape)
            self.high.resize_(saved.shape)
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


def _sample(x: Tensor, axis: int) -> Tensor:
    """Return a view of some of the values of every channel, spread over all dimensions, the last ones first."""
    left = max(FEWEST, SAMPLE // x.shape[axis])
    for dim in reversed(range(x.dim())):
        if dim != axis:
            size = x.shape[dim]
            step = -(-size // left)
            if step > 1:
                x = x[(slice(None),) * dim + (slice(None, None, step),)]
            left = max(1, left // x.shape[dim])
    return x


def _extremes(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    others = [dim for dim in range(x.dim()) if dim != axis]
    low, high = (x.amin(others), x.amax(others)) if others else (x, x)
    if not bool((high - low).isfinite().all()):  # NaN, infinite, or so wide that the difference is
        finite = x.isfinite()
        low, high = torch.where(finite, x, torch.inf), torch.where(finite, x, -torch.inf)
        low, high = (low.amin(others), high.amax(others)) if others else (low, high)
    return low.float(), high.float()


def _widen(low: Tensor, high: Tensor, more_low: Tensor, more_high: Tensor) -> None:
    torch.minimum(low, more_low.to(low.device), out=low)
    torch.maximum(high, more_high.to(high.device), out=high)


class Extremes(nn.Module):
    """Keeps the smallest and the largest finite value of all batches.

    Buffer: ``ends`` float32 [2], float values; inf and -inf if there was none.
    """

    ends: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.tensor([torch.inf, -torch.inf]))
        self._seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Look at ``x``, float of any shape, and return it. It counts once ``keep`` is called."""
        if (seen := self.look_alone(x.detach())) is not None:
            self._seen = seen[0]
        return x

    def look_alone(self, x: Tensor) -> tuple[Tensor, ...] | None:
        """Return the extremes of ``x``, float32 [2], for ``take_alone``; None where it is empty."""
        if not x.numel():
            return None
        low, high = torch.aminmax(x)
        if not bool((high - low).isfinite()):  # NaN, infinite, or so wide that the difference is
            finite = x.isfinite()
            low, high = torch.where(finite, x, torch.inf).amin(), torch.where(finite, x, -torch.inf).amax()
        return (torch.stack([low, high]).float(),)

    def take_alone(self, ends: Tensor) -> None:
        """Take note of what ``look_alone`` saw."""
        self._widen(ends.to(self.ends.device))

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
