"""Operators that give some of the values that they get: on quantized values they run as on float values."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fxquant.nn import max_pool, shape
from fxquant.patterns.pool import EXTREMA
from fxquant.patterns.shape import DATA_MOVEMENT, SPLITS

__all__ = ["DATA_MOVERS", "FLOAT_FUNCTIONS", "SPLITS"]

FLOAT_FUNCTIONS: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    **{
        getattr(max_pool, name): getattr(F, name)
        for name in ("max_pool1d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
    },
    shape.interpolate: F.interpolate,
}
"""Function that int8 models call on quantized values -> the same of float values."""

DATA_MOVERS = {target for pattern in (*DATA_MOVEMENT, *EXTREMA) for target in pattern.root.all_targets}
"""Targets of nodes."""
