"""Does nothing: for values that are kept in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fxquant.errors import CalibrationError
from fxquant.observers.base import OBSERVERS, ObserverBase
from fxquant.plan.spec import QParams


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
