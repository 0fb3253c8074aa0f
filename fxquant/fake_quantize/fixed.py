"""Fake-quantize with qparams that are known beforehand: outputs of sigmoid, softmax, tanh."""

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.observers.fixed import FixedQParamsObserver


class FixedQParamsFakeQuantize(FakeQuantize):
    """Simulates fixed qparams, whatever the values are. ``scale`` and ``zero_point`` are the buffers of its observer.

    Args:
        observer: What ``FixedQParamsObserver.with_args`` gives.

    Raises:
        SpecError: the observer is another one.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__(observer=observer)
        if not isinstance(self.activation_post_process, FixedQParamsObserver):
            raise SpecError(
                "FixedQParamsFakeQuantize takes its qparams from its observer",
                got=type(self.activation_post_process).__name__,
                expected="FixedQParamsObserver.with_args(scale=..., zero_point=...)",
            )
        self.scale = self.activation_post_process.scale
        self.zero_point = self.activation_post_process.zero_point

    def observe(self, x: Tensor) -> None:
        """Ignore ``x``, since the qparams are fixed."""

    @torch.jit.export
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return the qparams."""
        return self.scale, self.zero_point
