"""The example inputs of a prepared model as plain data: shapes and dtypes of tensors, not their values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.artifact.values import DEPTH, DTYPES, LONGEST_TEXT, decode, decode_key, encode, encode_key
from fxquant.errors import ArtifactError

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode_example(value: Any) -> Any:
    """Write an input, and what lies in it.

    Raises:
        ArtifactError: it is neither a tensor nor plain data.
    """
    if isinstance(value, Tensor) and value.dtype in _NAMES:
        return {"tensor": [_NAMES[value.dtype], list(value.shape)]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode_example(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode_example(item) for key, item in value.items()}}
    if type(value) is dict:
        return {"pairs": [[encode_key(key), encode_example(item)] for key, item in value.items()]}
    return {"value": encode(value)}


def decode_example(data: Any, depth: int = DEPTH) -> Any:
    """Read an input: tensors are zeros, of which one element is in memory.

    Raises:
        ArtifactError: ``encode_example`` writes no such thing.
    """
    if depth > 0 and isinstance(data, dict) and len(data) == 1:
        ((tag, content),) = data.items()
        if tag == "tensor" and isinstance(content, list) and len(content) == 2:
            return _zeros(*content)
        if tag in ("list", "tuple") and isinstance(content, list):
            items = [decode_example(item, depth - 1) for item in content]
            return items if tag == "list" else tuple(items)
        if tag == "dict" and isinstance(content, dict) and all(len(key) <= LONGEST_TEXT for key in content):
            return {key: decode_example(item, depth - 1) for key, item in content.items()}
        if tag == "pairs" and isinstance(content, list) and all(isinstance(p, list) and len(p) == 2 for p in content):
            return {decode_key(key, depth - 1): decode_example(item, depth - 1) for key, item in content}
        if tag == "value":
            return decode(content, None, depth - 1)
    raise ArtifactError("the file describes no example input here", got=ascii(data)[:120])


def _zeros(dtype: Any, shape: Any) -> Tensor:
    sizes = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**31 for n in shape)
    if not sizes or not isinstance(dtype, str) or dtype not in DTYPES:
        raise ArtifactError("the file describes no example input here", got=ascii([dtype, shape])[:120])
    return torch.zeros((), dtype=DTYPES[dtype]).expand(shape)
