"""Look-ups of rows: only their table is quantized. Indices are no values that could be, and what comes out is real."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.fx import Node

from fxquant.graph.query import called_module
from fxquant.patterns.pattern import Output, Pattern, Reject, op, tensor


def rows_stay(captures: Mapping[str, Node]) -> Reject | None:
    """``max_norm`` shortens rows of the table in the forward that reads them."""
    limit = called_module(captures["embedding"]).max_norm
    return None if limit is None else Reject(f"max_norm={limit} changes the table in forward", captures["embedding"])


EMBEDDING = tuple(
    Pattern(
        name,
        op(layer)(tensor("indices")).named("embedding"),
        inputs=(),
        weight="embedding",
        output=Output.FLOAT,
        check=rows_stay,
    )
    for name, layer in (("embedding", nn.Embedding), ("embedding_bag", nn.EmbeddingBag))
)
