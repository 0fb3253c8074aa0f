"""Smallest and largest value of all batches: exact, and at the mercy of outliers."""

from typing import Any

import torch

from fxquant.errors import SpecError
from fxquant.observers.base import OBSERVERS
from fxquant.observers.extremes import ExtremesObserver
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.observers.scheme import make_scheme
from fxquant.plan.spec import QScheme


@OBSERVERS.register("minmax")
class MinMaxObserver(ExtremesObserver):
    """Tracks the smallest and the largest value of whole tensors.

    Args:
        dtype: Integers of the grid: ``torch.quint8`` (the default), ``qint8``, ``uint8``, ``int8``, ``int16``, ...
        qscheme: ``torch.per_tensor_affine`` (the default) or ``torch.per_tensor_symmetric``, or the name as a string.
        reduce_range: Halve the limits (one bit less).
        quant_min, quant_max: Inclusive limits of the grid, in steps. None: all that ``dtype`` or ``bits`` holds.
        factory_kwargs: ``{"device": ...}`` for the buffers.
        eps: Smallest scale, in real units per step.
        is_dynamic: The range is meant to be measured at run time.
        bits: Width of the grid, 2 to 16, in place of that of ``dtype``.
        scheme: A ``QScheme``, in place of all other words for the grid.

    Raises:
        SpecError: the grid cannot exist, or has a scale per channel.

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


@OBSERVERS.register("per_channel_minmax")
class PerChannelMinMaxObserver(ExtremesObserver):
    """Tracks the smallest and the largest value of each channel, or of each group within it.

    Args:
        ch_axis: Dimension with one scale per index; negative counts from the end.
        dtype: Integers of the grid: ``torch.quint8`` (the default), ``qint8``, ``uint8``, ``int8``, ``int16``, ...
        qscheme: ``torch.per_channel_affine`` (the default) or ``torch.per_channel_symmetric``,
            or ``torch.per_channel_affine_float_qparams``, or the name as a string.
        reduce_range: Halve the limits (one bit less).
        quant_min, quant_max: Inclusive limits of the grid, in steps. None: all that ``dtype`` or ``bits`` holds.
        factory_kwargs: ``{"device": ...}`` for the buffers.
        eps: Smallest scale, in real units per step.
        is_dynamic: Refused: ranges per channel are measured beforehand.
        bits: Width of the grid, 2 to 16, in place of that of ``dtype``.
        group_size: One scale per run of this many values along the dimension after ``ch_axis``.
        scheme: A ``QScheme``, in place of all other words for the grid.

    Raises:
        SpecError: the grid cannot exist, or has one scale for the whole tensor; ``is_dynamic``.

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
