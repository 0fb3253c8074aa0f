"""Defines the base of observers that remember one range per scale: their buffers, saving, loading, resetting."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import CalibrationError, InputError, SpecError
from fxquant.graph.state_values import check_range
from fxquant.observers.base import ObserverBase, put_pooled, refuse_to_trace, take_pooled
from fxquant.observers.qparams import choose_qparams
from fxquant.observers.ranges import value_range
from fxquant.observers.scheme import torch_dtype, torch_qscheme
from fxquant.plan.spec import QParams, QScheme, check_number

FIRST_BATCH = (
    "the first batch gives statistics and qparams per channel their shape",
    "run the module once before it is traced",
)
"""What cannot be traced, and what to do."""


class RangeObserver(ObserverBase):
    """Base of observers whose statistics are one range per scale.

    Buffers: ``min_val`` and ``max_val`` float32, [] per tensor, [C] per channel, [C, groups] per group ([0] before
    the first batch); ``eps`` float32 [1], the smallest scale; ``nonfinite_count`` int64 [], how many NaN and infinite
    values were left out.
    """

    eps: Tensor
    min_val: Tensor
    max_val: Tensor
    nonfinite_count: Tensor
    scheme: QScheme

    def __init__(
        self,
        scheme: QScheme,
        *,
        dtype: torch.dtype | None,
        reduce_range: bool,
        eps: float,
        is_dynamic: bool,
        factory_kwargs: dict[str, Any] | None,
    ) -> None:
        super().__init__(scheme, dtype=torch_dtype(scheme) if dtype is None else dtype, is_dynamic=is_dynamic)
        self.qscheme = torch_qscheme(scheme)
        self.reduce_range = reduce_range
        check_number("eps", eps, lambda scale: scale >= 0, "a smallest scale: 0 or more")
        self.smallest_scale = float(eps)  # beside the buffer, since reading that waits for a GPU
        device = _device_of(factory_kwargs or {})
        self.register_buffer("eps", torch.tensor([eps], dtype=torch.float32, device=device))
        for name, value in (("min_val", torch.inf), ("max_val", -torch.inf)):
            empty = torch.full(self._unseen_shape(), value, dtype=torch.float32, device=device)
            self.register_buffer(name, empty)
        self.register_buffer("nonfinite_count", torch.zeros((), dtype=torch.int64, device=device))
        self._pooled: dict[str, Tensor] = {}

    def update(self, x: Tensor) -> None:
        low, high, nonfinite = value_range(x, self.scheme)
        if low.device != self.min_val.device:
            low, high = low.to(self.min_val.device), high.to(self.min_val.device)
        self.start(tuple(low.shape), x)
        self.merge(low, high)
        if isinstance(nonfinite, Tensor) or nonfinite:
            self.nonfinite_count.add_(nonfinite)

    def make_room(self, x: Tensor) -> tuple[int, ...]:
        """Give the statistics the shape that ``x`` will ask for, and return it, without observing anything."""
        shape = tuple(value_range(x.detach(), self.scheme)[0].shape)
        self.start(shape, x)
        return shape

    def start(self, shape: tuple[int, ...], x: Tensor) -> None:
        """Make room for ranges of a shape at the first batch; at later ones, check that ``x`` still has it."""
        min_val = self.min_val
        if tuple(min_val.shape) != shape and min_val.numel() == 0:
            refuse_to_trace(*FIRST_BATCH)
            # Resized and not replaced, so that whoever holds the buffer sees the change.
            min_val.resize_(shape).fill_(torch.inf)
            self.max_val.resize_(shape).fill_(-torch.inf)
        if tuple(min_val.shape) != shape:
            raise InputError(
                "the number of channels differs from that of earlier batches",
                got=f"{_channels(shape)} in a tensor of shape {tuple(x.shape)}",
                expected=_channels(min_val.shape),
            )

    def merge(self, low: Tensor, high: Tensor) -> None:
        """Take the range of one batch into ``min_val`` and ``max_val``: here, widen them to hold it.

        ``low`` and ``high`` have their shape; inf and -inf where the batch showed no finite value.
        """
        min_val, max_val = self.min_val, self.max_val
        torch.minimum(min_val, low, out=min_val)
        torch.maximum(max_val, high, out=max_val)

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """See ``ObserverBase``. What was pooled before, and so is in every state, counts once.

        Raises:
            InputError: they have seen tensors of different numbers of channels.
        """
        seen = [state for state in states if state["min_val"].numel()]
        if seen:
            self.start(tuple(seen[0]["min_val"].shape), seen[0]["min_val"])
            self.pool_ranges([{name: value.to(self.min_val.device) for name, value in state.items()} for state in seen])
        counted = torch.stack([state["nonfinite_count"] for state in states]).sum()
        twice = self._pooled["nonfinite_count"].to(counted.device) * (len(states) - 1) if self._pooled else 0
        self.nonfinite_count.copy_(counted - twice)
        self._pooled = {name: value.clone() for name, value in self.named_buffers()}

    def pool_ranges(self, seen: Sequence[Mapping[str, Tensor]]) -> None:
        """Take the ranges of several observers for those of this one; here, the widest.

        ``seen``: the states of those that have seen something, in any order, on the device of ``min_val``.
        """
        for state in seen:
            self.merge(state["min_val"], state["max_val"])

    def qparams(self) -> QParams:
        if self.min_val.numel() == 0:
            raise CalibrationError("this observer has seen no data", hint="run calibration first")
        return choose_qparams(self.min_val, self.max_val, self.scheme, self.eps)

    def reset_min_max_vals(self) -> None:
        """Forget everything that was observed."""
        self._pooled = {}
        shape = self._unseen_shape()
        self.min_val.resize_(shape).fill_(torch.inf)
        self.max_val.resize_(shape).fill_(-torch.inf)
        self.nonfinite_count.zero_()

    def _unseen_shape(self) -> tuple[int, ...]:
        return () if self.scheme.axis is None else (0,)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        put_pooled(self._pooled, destination, prefix)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take ranges of any number of channels, and states written by torch.ao, which count nothing."""
        check_range(state_dict, prefix + "min_val", prefix + "max_val")
        for name in ("min_val", "max_val"):
            buffer, saved = getattr(self, name), state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and self.scheme.axis is not None and saved.shape != buffer.shape:
                buffer.resize_(saved.shape)
        pooled = take_pooled(state_dict, prefix)
        if prefix + "min_val" in state_dict:
            self._pooled = pooled
        state_dict.setdefault(prefix + "eps", self.eps)
        state_dict.setdefault(prefix + "nonfinite_count", torch.zeros_like(self.nonfinite_count))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if not self.eps.is_meta:
            self.smallest_scale = self.eps.item()

    def extra_repr(self) -> str:
        if self.min_val.numel() == 0:
            return f"{self.scheme}, nothing observed"
        if self.min_val.numel() == 1:
            return f"{self.scheme}, min_val={float(self.min_val):g}, max_val={float(self.max_val):g}"
        span = f"min_val={float(self.min_val.min()):g}, max_val={float(self.max_val.max()):g}"
        return f"{self.scheme}, {_channels(self.min_val.shape)}, {span}"


def _device_of(factory_kwargs: dict[str, Any]) -> Any:
    if factory_kwargs.keys() - {"device", "dtype"} or factory_kwargs.get("dtype", torch.float32) != torch.float32:
        raise SpecError(
            "factory_kwargs says where the buffers live; statistics are float32",
            got=factory_kwargs,
            expected="{'device': ...}",
        )
    return factory_kwargs.get("device")


def _channels(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) + (" channels" if len(shape) == 1 else " channels and groups")
