"""The transformer layers of ``torch.nn``, which look at values only to find a faster path to the same result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import Proxy

TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Traced through: they are made of layers."""


@contextmanager
def traceable_transformers() -> Iterator[None]:
    """Let encoders and decoders compute on proxies what they compute else, without looking at values."""
    forwards: tuple[tuple[Any, Any], ...] = ((nn.TransformerEncoder, _encode), (nn.TransformerDecoder, _decode))
    before = [(kind, kind.forward) for kind, _ in forwards]
    try:
        for kind, instead in forwards:
            kind.forward = _for_proxies(instead, kind.forward)
        yield
    finally:
        for kind, forward in before:
            kind.forward = forward


def _for_proxies(instead: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def either(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(first, Proxy):
            return forward(self, first, *args, **kwargs)
        return instead(forward, self, first, *args, **kwargs)

    return either


def _encode(
    forward: Callable[..., Any],
    self: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """What ``nn.TransformerEncoder`` computes; zeros where it would leave padded positions out, in a nested tensor.

    It does so if the padding comes last in every row, which a graph finds out when it runs. Whether a mask is causal
    need not be found out: the mask counts either way.
    """
    norm, nested = self.norm, getattr(self, "use_nested_tensor", False)
    self.norm, self.use_nested_tensor = None, False
    try:
        output = forward(self, src, mask, src_key_padding_mask, bool(is_causal))
    finally:
        self.norm, self.use_nested_tensor = norm, nested
    fast = nested and not self.layers[0].training and torch.backends.mha.get_fastpath_enabled()
    if fast and src_key_padding_mask is not None and mask is None:
        padded = src_key_padding_mask != 0
        last = torch.logical_not(torch.any(padded[:, :-1] & torch.logical_not(padded[:, 1:])))
        output = output.masked_fill((padded & last).unsqueeze(-1), 0.0)
    return output if norm is None else norm(output)


def _decode(forward: Callable[..., Any], self: Any, tgt: Any, memory: Any, *args: Any, **kwargs: Any) -> Any:
    names = ("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask", "tgt_is_causal")
    given = dict(zip((*names, "memory_is_causal"), args, strict=False)) | kwargs
    return forward(self, tgt, memory, **(given | {"tgt_is_causal": bool(given.get("tgt_is_causal"))}))
