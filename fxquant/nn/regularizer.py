"""Functions that drop values while training, as modules that follow ``train()`` and ``eval()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class Regularizer(nn.Module):
    """Calls a function such as ``F.dropout`` with the training mode of this module as its argument ``training``.

    Args:
        function: Takes a tensor, ``arguments`` and ``training``.
        arguments: Its other arguments, by name.
    """

    def __init__(self, function: Callable[..., Tensor], arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.arguments = dict(arguments)

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, **self.arguments, training=self.training)

    def extra_repr(self) -> str:
        return ", ".join([self.function.__name__, *(f"{name}={value!r}" for name, value in self.arguments.items())])
