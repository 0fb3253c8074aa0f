"""What is known of the nodes of a float graph, as plain data, and back: conversion and coverage read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import NoneType
from typing import Any

import torch
from torch.fx import Node

from fxquant.artifact.functions import function_called, name_of
from fxquant.artifact.modules import TYPES
from fxquant.artifact.values import LONGEST_TEXT, decode, encode
from fxquant.errors import ArtifactError
from fxquant.graph.module import STACK
from fxquant.graph.query import (
    BY_REQUEST,
    CALLED,
    INPLACE,
    NAMED,
    ORIGINAL_FUNCTION,
    PRODUCTS,
    REASON,
    VALUE,
    WEIGHT,
    NamedClass,
    TensorInfo,
)

_CLASS_NAME = re.compile(r"[\w<>]{1,200}(\.[\w<>]{1,200}){0,30}", re.ASCII)
_TYPE_NAMES = {kind: name for name, kind in TYPES.items()}

PLAIN: dict[str, type] = {
    kind.__name__: kind
    for kind in (int, float, bool, complex, str, bytes, slice, range, object, NoneType, torch.Size, torch.dtype)
}
"""Classes of values that are no tensors. Any other is ``object`` in a file."""
_PLAIN_NAMES = {kind: name for name, kind in PLAIN.items()}


def encode_class(kind: Any) -> Any:
    """Write a class or a function that rules name: by a name of the closed tables, or as a name and nothing more."""
    if isinstance(kind, str):
        return {"text": kind}
    if isinstance(kind, NamedClass):
        return {"class": kind.path}
    if isinstance(kind, type) and kind in _TYPE_NAMES:
        return {"class": _TYPE_NAMES[kind]}
    if callable(kind) and (name := name_of(kind)):
        return {"function": name}
    return {"class": f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"}


def decode_class(data: Any) -> Any:
    """Read what ``encode_class`` wrote. A class of no table is a ``NamedClass``: nothing is imported.

    Raises:
        ArtifactError: it is none.
    """
    if isinstance(data, dict) and len(data) == 1:
        ((tag, name),) = data.items()
        if tag == "text" and isinstance(name, str) and len(name) <= LONGEST_TEXT:
            return name
        if tag == "function" and isinstance(name, str) and (function := function_called(name)):
            return function
        if tag == "class" and isinstance(name, str) and _CLASS_NAME.fullmatch(name):
            return TYPES.get(name) or NamedClass(name)
    raise ArtifactError("the file names no class or function here", got=ascii(data)[:120])


def encode_value(value: Any) -> Any:
    """Write a description of a value, as ``info_of`` gives it."""
    if isinstance(value, TensorInfo):
        return encode(value)
    if isinstance(value, tuple):
        return {"items": [encode_value(item) for item in value]}
    if isinstance(value, dict):
        return {"named": {key: encode_value(item) for key, item in value.items()}}
    return {"kind": _PLAIN_NAMES.get(value, "object")}


def decode_value(data: Any, depth: int = 16) -> Any:
    """Read what ``encode_value`` wrote.

    Raises:
        ArtifactError: it is none.
    """
    if depth > 0 and isinstance(data, dict) and len(data) == 1:
        ((tag, content),) = data.items()
        if tag == "items" and isinstance(content, list):
            return tuple(decode_value(item, depth - 1) for item in content)
        if tag == "named" and isinstance(content, dict):
            return {key: decode_value(item, depth - 1) for key, item in content.items()}
        if tag == "kind" and isinstance(content, str) and content in PLAIN:
            return PLAIN[content]
    found = decode(data)
    if not isinstance(found, TensorInfo):
        raise ArtifactError("the value of a node is described by something else", got=ascii(data)[:120])
    return found


def _encode_called(called: Any) -> Any:
    path, kind = called
    return [path, None if kind is None else encode_class(kind)]


def _decode_called(data: Any) -> Any:
    path, kind = _list_of(data, 2)
    return _text(path), None if kind is None else decode_class(kind)


def _encode_stack(stack: Any) -> Any:
    return [[key, path, encode_class(kind)] for key, (path, kind) in stack.items()]


def _decode_stack(data: Any) -> Any:
    rows = [_list_of(row, 3) for row in _list_of(data)]
    return {_text(key): (_text(path), decode_class(kind)) for key, path, kind in rows}


def _decode_products(data: Any) -> Any:
    count, unknown = _list_of(data, 2)
    if type(count) is not int or not 0 <= count < 2**63:
        raise ArtifactError("the file counts no products here", got=ascii(count)[:120])
    return count, _text(unknown)


def _list_of(data: Any, length: int | None = None) -> list[Any]:
    if not isinstance(data, list) or length not in (None, len(data)):
        raise ArtifactError("a fact about a node is no list, or of another length", got=ascii(data)[:120])
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str) or len(data) > LONGEST_TEXT:
        raise ArtifactError("a fact about a node is no text", got=ascii(data)[:120])
    return data


def _truth(data: Any) -> bool:
    if not isinstance(data, bool):
        raise ArtifactError("a fact about a node is neither true nor false", got=ascii(data)[:120])
    return data


_FACTS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "value": (VALUE, encode_value, decode_value),
    "called": (CALLED, _encode_called, _decode_called),
    "inside": (STACK, _encode_stack, _decode_stack),
    "written": (ORIGINAL_FUNCTION, encode_class, decode_class),
    "weight": (WEIGHT, str, _text),
    "reason": (REASON, str, _text),
    "products": (PRODUCTS, list, _decode_products),
    "by_request": (BY_REQUEST, bool, _truth),
    "named": (NAMED, bool, _truth),
    "inplace": (INPLACE, bool, _truth),
}
"""Name in a file -> key of ``node.meta``, and how the fact is written and read."""


def encode_facts(node: Node) -> dict[str, Any]:
    """Write what is known of a node, without the lines of the user's code: these say how folders are named."""
    found = {name: (node.meta.get(key), write) for name, (key, write, _) in _FACTS.items() if key in node.meta}
    return {name: write(fact) for name, (fact, write) in found.items() if fact is not None}


def decode_facts(node: Node, data: Any) -> None:
    """Give a node what ``encode_facts`` wrote.

    Raises:
        ArtifactError: it is something else.
    """
    if not isinstance(data, dict) or not set(data) <= set(_FACTS):
        raise ArtifactError("the facts about a node are others", got=ascii(data)[:120])
    for name, fact in data.items():
        key, _, read = _FACTS[name]
        node.meta[key] = read(fact)
