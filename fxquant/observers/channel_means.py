"""The mean of each channel of a value: what the error of a rounded weight is multiplied with, on average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError
from fxquant.observers.base import attributes_of_pooled, keeping_dtype, put_pooled, take_pooled


class ChannelMeans(nn.Module):
    """Averages over all dimensions but one, and over all calls, each weighted by its number of values.

    Values that are inf or NaN count as 0: the observer of the range beside it counts and reports them.

    Buffers: ``total`` float64 [C], the sum of each channel; ``count`` int64 [], values of one channel that were seen.

    Args:
        axis: The dimension that counts the channels; negative, so that a batch dimension may be missing.
    """

    total: Tensor
    count: Tensor

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("total", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self._pooled: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Observe ``x``, float of any shape that has the axis, and return it."""
        if x.numel():
            self.update(x.detach())
        return x

    def update(self, x: Tensor) -> None:
        """Take the values of ``x`` (detached, at least one) into account.

        Raises:
            InputError: it has no such dimension, or another number of channels than what was seen before.
        """
        kept = x.dim() + self.axis
        if kept < 0:
            raise InputError(
                "a tensor has too few dimensions for the operator that reads it",
                got=f"{x.dim()} in a tensor of shape {tuple(x.shape)}",
                expected=f"at least {-self.axis}",
            )
        others = [dim for dim in range(x.dim()) if dim != kept]
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.sum(others, dtype=wide) if others else x.to(wide)
        if not bool(torch.isfinite(total).all()):
            total = torch.nan_to_num(x.to(torch.float64), 0.0, 0.0, 0.0).sum(others)
        self.merge(total, x.numel() // x.shape[kept], f" in a tensor of shape {tuple(x.shape)}")

    def merge(self, total: Tensor, count: Tensor | int, source: str = "") -> None:
        """Add the sums of a batch.

        Args:
            total: Float [C], the sum of each channel.
            count: How many values of each channel were summed.
            source: What an error says of where they come from.

        Raises:
            InputError: it has another number of channels than what was seen before.
        """
        if self.total.numel() == 0:
            self.total = total.to(torch.float64, copy=True)  # later sums are added in place
        elif self.total.shape != total.shape:
            raise InputError(
                "the number of channels differs from that of earlier batches",
                got=f"{len(total)} channels{source}",
                expected=f"{len(self.total)} channels",
            )
        else:
            self.total += total
        self.count += count

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what several copies of this one have seen, each a part of the data, for what this one has seen.

        Args:
            states: The ``state_dict()`` of each, this one's among them, in any order. What was pooled before, and so is
                in every state, counts once.
        """
        seen = [state for state in states if state["total"].numel()]
        if not seen:
            return
        before = self._pooled or {name: torch.zeros_like(seen[0][name]) for name in ("total", "count")}
        device = self.count.device
        for name, shared in before.items():
            rest = torch.stack([state[name] - shared for state in seen]).sort(0).values.sum(0)
            setattr(self, name, (shared + rest).to(device))  # sorted, since sums are rounded
        self._pooled = {name: value.to("cpu", copy=True) for name, value in self.named_buffers()}

    @property
    def pooled(self) -> SimpleNamespace:
        """Return what all processes knew of at the last ``pool``."""
        return attributes_of_pooled(self._pooled)

    def means(self) -> Tensor | None:
        """float64 [C]; None if nothing was seen."""
        return self.total / self.count if self.total.numel() else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ChannelMeans:
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        put_pooled(self._pooled, destination, prefix)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        pooled, saved = take_pooled(state_dict, prefix), state_dict.get(prefix + "total")
        if isinstance(saved, Tensor) and saved.dim() == 1:
            self._pooled = pooled
            self.total.resize_(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"
