"""Observers under torch.ao's names, with its defaults: they measure by the observers of fxquant.

What differs from those of ``fxquant.observers``: an observer that has seen nothing warns, and answers with scale 1 and
zero point 0; the smallest scale is that of torch.ao; ``HistogramObserver`` searches as torch.ao does.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant import observers
from fxquant.compat.partial import WithArgs
from fxquant.compat.range_qparams import Range, qparams_of_answer, warn_unseen
from fxquant.observers.scheme import make_scheme
from fxquant.plan.spec import QParams

# No ``from __future__ import annotations`` here: TorchScript reads the annotations of modules as they stand.

EPS = torch.finfo(torch.float32).eps
"""The smallest scale of torch.ao."""


class ObserverBase(ABC, WithArgs, nn.Module):
    """Base class of observers of one's own, as torch.ao has it: ``forward`` and ``calculate_qparams`` are written.

    Observers of fxquant count as its instances.

    Args:
        dtype: Of the quantized values.
        is_dynamic: The range is meant to be measured at run time.
    """

    def __init__(self, dtype: torch.dtype, is_dynamic: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        self.is_dynamic = is_dynamic

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Measure ``x``, and return it."""

    @abstractmethod
    def calculate_qparams(self, **kwargs: Any) -> Any:
        """Return ``(scale, zero_point)``."""


_base: Any = ObserverBase
_base.register(observers.ObserverBase)


class UniformQuantizationObserverBase(ObserverBase):
    """Base class of observers of one's own that choose qparams from a smallest and a largest value.

    Args:
        dtype, qscheme, reduce_range, quant_min, quant_max, eps, is_dynamic: As for ``MinMaxObserver``.
        factory_kwargs: ``{"device": ...}`` for buffers.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=dtype, is_dynamic=is_dynamic)
        self.qscheme, self.reduce_range = qscheme, reduce_range
        per_channel = "per_channel" in str(qscheme)
        self.scheme = make_scheme(
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            ch_axis=getattr(self, "ch_axis", 0) if per_channel else None,
        )
        self.quant_min, self.quant_max = self.scheme.quant_min, self.scheme.quant_max
        self.register_buffer("eps", torch.tensor([eps], **(factory_kwargs or {})))

    def _calculate_qparams(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        """Choose qparams for a range."""
        if min_val.numel() == 0 or bool((min_val > max_val).any()):
            warn_unseen()
            return torch.tensor([1.0], device=min_val.device), torch.tensor([0], device=min_val.device)
        eps: Any = self.eps
        found = observers.choose_qparams(min_val, max_val, self.scheme, eps)
        return found.scale, found.zero_point


_base = UniformQuantizationObserverBase
_base.register(observers.MinMaxObserver)
_base.register(observers.PerChannelMinMaxObserver)


class MinMaxObserver(Range, observers.MinMaxObserver):
    """Tracks the smallest and the largest value of whole tensors. Arguments are torch.ao's."""

    def __init__(
        self,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        require_per_tensor(type(self), qscheme)
        reduce_range = halves(dtype, reduce_range, quant_min)
        where = on_device(factory_kwargs)
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, where, eps, is_dynamic, **kwargs)
        self.answer_as_torch(self.scheme, dtype, reduce_range, quant_min is not None)


class MovingAverageMinMaxObserver(Range, observers.MovingAverageMinMaxObserver):
    """Tracks a moving average of the range of each batch. Arguments are torch.ao's."""

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        require_per_tensor(type(self), qscheme)
        reduce_range = halves(dtype, reduce_range, quant_min)
        if is_dynamic and averaging_constant != 1:
            raise NotImplementedError(
                "MovingAverageMinMaxObserver doesn't support dynamic quantization for averaging constant of "
                f"{averaging_constant}"
            )
        kwargs = {**kwargs, "factory_kwargs": on_device(kwargs.get("factory_kwargs"))}
        super().__init__(
            averaging_constant, dtype, qscheme, reduce_range, quant_min, quant_max, eps, is_dynamic, **kwargs
        )
        self.answer_as_torch(self.scheme, dtype, reduce_range, quant_min is not None)


class PerChannelMinMaxObserver(Range, observers.PerChannelMinMaxObserver):
    """Tracks the smallest and the largest value of each channel. Arguments are torch.ao's."""

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_channel_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        require_per_channel(type(self), qscheme, is_dynamic)
        reduce_range = halves(dtype, reduce_range, quant_min)
        where = on_device(factory_kwargs)
        super().__init__(ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, where, eps, False, **kwargs)
        self.answer_as_torch(self.scheme, dtype, reduce_range, quant_min is not None)


class MovingAveragePerChannelMinMaxObserver(Range, observers.MovingAveragePerChannelMinMaxObserver):
    """Tracks a moving average of the range of each channel. Arguments are torch.ao's."""

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_channel_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        require_per_channel(type(self), qscheme, is_dynamic)
        reduce_range = halves(dtype, reduce_range, quant_min)
        kwargs = {**kwargs, "factory_kwargs": on_device(kwargs.get("factory_kwargs"))}
        super().__init__(
            averaging_constant, ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps, False, **kwargs
        )
        self.answer_as_torch(self.scheme, dtype, reduce_range, quant_min is not None)


def halves(dtype: torch.dtype, reduce_range: bool, quant_min: int | None) -> bool:
    """Tell whether ``reduce_range`` has an effect: on 8 bits, and on limits that are given."""
    return reduce_range and (quant_min is not None or str(dtype).endswith("int8"))


def on_device(factory_kwargs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Keep the device of ``factory_kwargs``: statistics are float32, whatever dtype they name."""
    return None if factory_kwargs is None else {key: value for key, value in factory_kwargs.items() if key == "device"}


def require_per_tensor(kind: type, qscheme: Any) -> None:
    """Refuse a qscheme per channel, with torch.ao's class of error."""
    if "per_channel" in str(qscheme):
        raise NotImplementedError(
            f"{kind.__name__}'s qscheme only support torch.per_tensor_symmetric and torch.per_tensor_affine."
        )


def require_per_channel(kind: type, qscheme: Any, is_dynamic: bool) -> None:
    """Refuse a qscheme per tensor, and ranges measured at run time, with torch.ao's class of error."""
    if "per_tensor" in str(qscheme):
        raise NotImplementedError(f"{kind.__name__}'s qscheme only support per channel")
    if is_dynamic:
        raise NotImplementedError(f"{kind.__name__} doesn't support dynamic quantization")


class FixedQParamsObserver(WithArgs, observers.FixedQParamsObserver):
    """Always answers with the same qparams. Arguments are torch.ao's."""

    def __init__(
        self,
        scale: float,
        zero_point: int,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        quant_min: int = 0,
        quant_max: int = 255,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        if is_dynamic:
            raise NotImplementedError("FixedQParamsObserver doesn't support dynamic quantization")
        super().__init__(scale, zero_point, dtype, qscheme, quant_min, quant_max, **kwargs)

    @torch.jit.export
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return ``(scale, zero_point)``."""
        return self.scale, self.zero_point

    def qparams(self) -> QParams:
        return qparams_of_answer(self.scheme, self.calculate_qparams())


class PlaceholderObserver(WithArgs, observers.PlaceholderObserver):
    """Carries a dtype: with a float dtype, the value or weight is left as it is. Arguments are torch.ao's."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        custom_op_name: str = "",
        compute_dtype: torch.dtype | None = None,
        quant_min: int | None = None,
        quant_max: int | None = None,
        qscheme: Any = None,
        eps: float | None = None,
        is_dynamic: bool = False,
    ) -> None:
        super().__init__(
            dtype, custom_op_name, compute_dtype, quant_min, quant_max, qscheme, EPS if eps is None else eps, is_dynamic
        )
        self.qscheme = torch.per_tensor_affine if qscheme is None else qscheme

    def calculate_qparams(self) -> Any:
        raise Exception("calculate_qparams should not be called for PlaceholderObserver")  # torch.ao's class and words


class NoopObserver(WithArgs, observers.NoopObserver):
    """Passes values on, and leaves them in float."""

    def calculate_qparams(self) -> Any:
        raise Exception("calculate_qparams should not be called for NoopObserver")


class ReuseInputObserver(WithArgs, observers.PlaceholderObserver):
    """Stands for the qparams of the operator's input, which operators that move values have in any case."""

    def __init__(self) -> None:
        super().__init__(torch.quint8)

    def calculate_qparams(self) -> Any:
        raise Exception("calculate_qparams should not be called for ReuseInputObserver")


class RecordingObserver(ObserverBase):
    """Keeps every tensor that it sees, for debugging. It chooses no qparams."""

    __annotations__ = {"tensor_val": list[Tensor]}

    def __init__(self, dtype: torch.dtype = torch.quint8) -> None:
        super().__init__(dtype)
        self.tensor_val: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Keep a copy of ``x``, and return it."""
        self.tensor_val.append(x.clone())
        return x

    @torch.jit.export
    def calculate_qparams(self) -> Any:  # type: ignore[override]
        raise Exception("calculate_qparams should not be called for RecordingObserver")

    @torch.jit.export
    def get_tensor_value(self) -> list[Tensor]:
        """Return the tensors."""
        return self.tensor_val
