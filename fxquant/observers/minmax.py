"""Observers of the smallest and the largest value of all batches: exact, and at the mercy of outliers. They can be
scripted."""

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.observers.qparams import SMALLEST_SCALE, middle
from fxquant.observers.range_observer import RangeObserver
from fxquant.observers.scheme import make_scheme
from fxquant.plan.spec import QScheme

# No ``from __future__ import annotations`` here, nor below this class: TorchScript reads annotations as they stand.


class ExtremesObserver(RangeObserver):
    """Base of min-max observers. In TorchScript ``merge`` says what becomes of the range of a batch, as outside."""

    min_val: Tensor
    max_val: Tensor
    eps: Tensor
    nonfinite_count: Tensor

    def describe_for_script(self, scheme: QScheme) -> None:
        """Keep limits and zero point as numbers, which are all that TorchScript knows."""
        self._axis = scheme.axis
        self._limits = (scheme.quant_min, scheme.quant_max)
        self._middle = middle(scheme) if scheme.symmetric else None
        self._float_qparams = scheme.float_qparams

    def update_in_script(self, x: Tensor) -> None:
        if not x.is_floating_point():
            x = x.float()
        if self._axis is not None and self.min_val.numel() == 0:
            self.min_val.resize_([x.size(self._axis)]).fill_(float("inf"))
            self.max_val.resize_([x.size(self._axis)]).fill_(-float("inf"))
        low, high, _, _, nonfinite = self._measured(x, self._axis)
        self.merge(low, high)
        self.nonfinite_count.add_(nonfinite)

    def qparams_in_script(self) -> tuple[Tensor, Tensor]:
        if self.min_val.numel() == 0 or bool((self.min_val > self.max_val).any()):
            raise RuntimeError("this observer has seen no data: run calibration first")
        if self._float_qparams:
            steps = float(self._limits[1] - self._limits[0])
            scale = (self.max_val - self.min_val) / steps
            scale = torch.where(scale > self.eps, scale, torch.ones_like(scale))
            return scale, -self.min_val / scale
        ends = torch.stack([self.min_val, self.max_val])
        _, _, qparams_scale, zero_point, _ = self._measured(ends, None if self._axis is None else 1)
        return qparams_scale, zero_point

    def _measured(self, x: Tensor, axis: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the range and the qparams of one tensor."""
        unseen = torch.full_like(self.min_val, float("inf"))
        low, high, scale, zero_point, nonfinite = torch.ops.fxquant.moving_average_qparams(
            x, unseen, -unseen, axis, 1.0, float(self.eps), self._limits[0], self._limits[1], self._middle
        )
        return low, high, scale, zero_point, nonfinite


class MinMaxObserver(ExtremesObserver):
    """Tracks the smallest and the largest value of whole tensors.

    Args:
        dtype: Of the quantized values: ``torch.quint8`` (the default), ``qint8``, ``uint8``, ``int8``, ``int16``, ...
        qscheme: ``torch.per_tensor_affine`` (the default) or ``torch.per_tensor_symmetric``, or the name as a string.
        reduce_range: Halve the limits (one bit less).
        quant_min, quant_max: Inclusive limits of the quantized values. None: all that ``dtype`` or ``bits`` holds.
        factory_kwargs: ``{"device": ...}`` for the buffers.
        eps: Smallest scale.
        is_dynamic: The range is meant to be measured at run time.
        bits: Bits of the quantized values, 2 to 16, in place of those of ``dtype``.
        scheme: A ``QScheme``, in place of all other arguments that describe qparams.

    Raises:
        SpecError: such qparams cannot exist, or has a scale per channel.

    Example:
        >>> observer = MinMaxObserver()
        >>> _ = observer(torch.tensor([1.0, 2.0])), observer(torch.tensor([-1.0, 3.0]))
        >>> observer.min_val.item(), observer.max_val.item()
        (-1.0, 3.0)
    """

    def __init__(
        self,
        dtype: torch.dtype | None = None,
        qscheme: object | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = SMALLEST_SCALE,
        is_dynamic: bool = False,
        *,
        bits: int | None = None,
        scheme: QScheme | None = None,
    ) -> None:
        qparams = make_scheme(
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            bits=bits,
            scheme=scheme,
        )
        super().__init__(
            qparams,
            dtype=dtype,
            reduce_range=reduce_range,
            eps=eps,
            is_dynamic=is_dynamic,
            factory_kwargs=factory_kwargs,
        )
        self.describe_for_script(qparams)


class PerChannelMinMaxObserver(ExtremesObserver):
    """Tracks the smallest and the largest value of each channel, or of each group within it.

    Args:
        ch_axis: Dimension with one scale per index; negative counts from the end.
        dtype: Of the quantized values: ``torch.quint8`` (the default), ``qint8``, ``uint8``, ``int8``, ``int16``, ...
        qscheme: ``torch.per_channel_affine`` (the default) or ``torch.per_channel_symmetric``,
            or ``torch.per_channel_affine_float_qparams``, or the name as a string.
        reduce_range: Halve the limits (one bit less).
        quant_min, quant_max: Inclusive limits of the quantized values. None: all that ``dtype`` or ``bits`` holds.
        factory_kwargs: ``{"device": ...}`` for the buffers.
        eps: Smallest scale.
        is_dynamic: Refused: ranges per channel are measured beforehand.
        bits: Bits of the quantized values, 2 to 16, in place of those of ``dtype``.
        group_size: One scale per run of this many values along the dimension after ``ch_axis``.
        scheme: A ``QScheme``, in place of all other arguments that describe qparams.

    Raises:
        SpecError: such qparams cannot exist, or has one scale for the whole tensor; ``is_dynamic``.

    Example:
        >>> observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.int8, qscheme=torch.per_channel_symmetric)
        >>> _ = observer(torch.tensor([[0.0, 0.0], [127.5, -1.0]]))
        >>> observer.max_val.tolist(), observer.qparams().scale[1].item()
        ([0.0, 127.5], 1.0)
    """

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype | None = None,
        qscheme: object | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = SMALLEST_SCALE,
        is_dynamic: bool = False,
        *,
        bits: int | None = None,
        group_size: int | None = None,
        scheme: QScheme | None = None,
    ) -> None:
        qparams = make_scheme(
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            ch_axis=ch_axis,
            bits=bits,
            group_size=group_size,
            scheme=scheme,
        )
        if is_dynamic:
            raise SpecError(f"{type(self).__name__} cannot measure ranges at run time", got="is_dynamic=True")
        super().__init__(
            qparams,
            dtype=dtype,
            reduce_range=reduce_range,
            eps=eps,
            is_dynamic=is_dynamic,
            factory_kwargs=factory_kwargs,
        )
        self.describe_for_script(qparams)
        self.ch_axis = qparams.axis or 0
