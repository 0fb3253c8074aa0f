"""Observers that measure nothing: one says what dtype a value shall have, the other leaves it in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fxquant.errors import CalibrationError
from fxquant.observers.base import OBSERVERS, ObserverBase
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.observers.scheme import make_scheme, torch_qscheme
from fxquant.plan.spec import QParams, QScheme


@OBSERVERS.register("placeholder")
class PlaceholderObserver(ObserverBase):
    """Carries a dtype: with a float dtype, the value or weight is left as it is.

    Args:
        dtype: float32 by default. An integer dtype gives the observer a ``scheme``, yet never qparams.
        custom_op_name: Kept as ``custom_op``.
        compute_dtype: Older spelling of ``is_dynamic=True``.
        quant_min, quant_max, qscheme: Limits and kind of an integer grid, per tensor.
        eps: Kept.
        is_dynamic: The range is meant to be measured at run time.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        custom_op_name: str = "",
        compute_dtype: torch.dtype | None = None,
        quant_min: int | None = None,
        quant_max: int | None = None,
        qscheme: object | None = None,
        eps: float | None = None,
        is_dynamic: bool = False,
    ) -> None:
        scheme = None
        if not dtype.is_floating_point:
            scheme = make_scheme(dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max)
        super().__init__(scheme, dtype=dtype, is_dynamic=is_dynamic or compute_dtype is not None)
        self.qscheme = torch_qscheme(scheme or QScheme())
        self.eps = SMALLEST_SCALE if eps is None else eps
        self.custom_op = custom_op_name

    def update(self, x: Tensor) -> None:
        """What is seen changes nothing."""

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """What others have seen changes nothing."""

    def qparams(self) -> QParams:
        raise CalibrationError(
            "a PlaceholderObserver measures nothing, so it has no scale and zero point",
            hint="use MinMaxObserver for what is to be quantized",
        )

    def extra_repr(self) -> str:
        return f"dtype={self.dtype}, is_dynamic={self.is_dynamic}"


@OBSERVERS.register("noop")
class NoopObserver(ObserverBase):
    """Passes values on. Unlike a placeholder it never has a scheme, so its values stay in float.

    Args:
        dtype: Kept; float16 by default.
        custom_op_name: Kept as ``custom_op``.
    """

    def __init__(self, dtype: torch.dtype = torch.float16, custom_op_name: str = "") -> None:
        super().__init__(None, dtype=dtype)
        self.custom_op = custom_op_name

    def update(self, x: Tensor) -> None:
        """What is seen changes nothing."""

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """What others have seen changes nothing."""

    def qparams(self) -> QParams:
        raise CalibrationError(
            "a NoopObserver measures nothing, so it has no scale and zero point",
            hint="use MinMaxObserver for what is to be quantized",
        )
