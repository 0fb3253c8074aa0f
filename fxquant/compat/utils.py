"""Small names of ``torch.ao.quantization`` that signatures and loops of programs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from fxquant.compat.fake_quantize import FakeQuantizeBase
from fxquant.compat.not_offered import refusal_of
from fxquant.compat.observer import ObserverBase

ObserverOrFakeQuantize = ObserverBase | FakeQuantizeBase
"""What measures a value, or rounds it in training."""

Pattern = Callable[..., Any] | tuple[Any, ...] | type | str
"""What a ``BackendPatternConfig`` takes: a class, a function, the name of a method, or a tuple of them."""


class MatchAllNode:
    """Stands, in a pattern, for any operator."""


def get_combined_dict(default_dict: Mapping[Any, Any], additional_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return both in one; where keys are alike, the second counts."""
    return {**default_dict, **additional_dict}


def default_eval_fn(model: nn.Module, calib_data: Iterable[tuple[Tensor, Any]]) -> None:
    """Run a model on the inputs of pairs of inputs and targets."""
    for data, _ in calib_data:
        model(data)


__all__ = ["MatchAllNode", "ObserverOrFakeQuantize", "Pattern", "default_eval_fn", "get_combined_dict"]

__getattr__ = refusal_of
