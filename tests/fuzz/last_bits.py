"""The control of sums in another order: the float model whose operators give a last bit more or less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.case import without_fast_path
from tests.fuzz.inputs import Values
from tests.fuzz.rounding import is_view


class LastBits(TorchDispatchMode):
    """While it is entered, operators multiply what they give by 1 ± the distance of float32 numbers above 1.

    Args:
        seed: Of the signs and sizes.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        values = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(values, Tensor) and values.is_floating_point() and not is_view(func):
            drawn = torch.empty(values.shape).uniform_(-1, 1, generator=self._generator)
            values.mul_(1 + torch.finfo(values.dtype).eps * drawn)
        return result


def with_other_last_bits(model: nn.Module, values: Values, seed: int) -> Any:
    """Run a model whose operators, also those within an attention, give other last bits."""
    with without_fast_path(), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), LastBits(seed):
        return model(*values)
