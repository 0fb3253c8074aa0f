"""Layers of ``torch.nn`` that are the whole model: one call of the layer, where its own forward would lose it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fxquant.graph.query import canonical_type
from fxquant.graph.recurrent import RECURRENT


class _OneLayer(nn.Module):
    """A model of one layer, under the name of its class.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.add_module(type(layer).__name__.lower(), layer)
        self.train(layer.training)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        (layer,) = self.children()
        return layer(*args, **kwargs)


class OneNorm(_OneLayer):
    """A model of one layer that takes one tensor."""

    def forward(self, input: Tensor) -> Any:
        """Call the layer."""
        return self._call(input)


class OneRecurrent(_OneLayer):
    """A model of one recurrent layer, or of one cell."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Call the layer, with zeros as first states if none are given."""
        return self._call(input) if hx is None else self._call(input, hx)


class OneAttention(_OneLayer):
    """A model of one ``nn.MultiheadAttention``."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """Call the layer."""
        flags = {"average_attn_weights": average_attn_weights, "is_causal": is_causal}
        masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        return self._call(query, key, value, need_weights=need_weights, **masks, **flags)


def with_layer_inside(model: nn.Module, *, has_example: bool) -> nn.Module:
    """Return a model that calls a recurrent layer or an attention as one; any other model as it is.

    Their forwards call one operator with all weights, of which no layer would be made. Without example inputs batch and
    instance norms are called as one, too: their forwards ask for the number of dimensions.

    Args:
        model: It becomes a child of the model that is returned.
        has_example: Whether code that asks for shapes can be traced.
    """
    kind = canonical_type(model)
    if kind in RECURRENT:
        return OneRecurrent(model)
    if kind is nn.MultiheadAttention:
        return OneAttention(model)
    if kind is not None and issubclass(kind, _NormBase) and not has_example:
        return OneNorm(model)
    return model
