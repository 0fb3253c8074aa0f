"""Arguments and settings as JSON, and back: numbers and strings as they are, everything else as a tagged object."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Union

import torch
from torch.fx import Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxquant.artifact.functions import function_called, name_of
from fxquant.errors import ArtifactError
from fxquant.graph.query import TensorInfo
from fxquant.graph.recurrent import RecurrentShape
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.base import FloatResult
from fxquant.nn.conv_transpose import Axis
from fxquant.nn.table import ElementFunction
from fxquant.plan.spec import Clamp, Dynamic, Handled, Means, QScheme, SharedWith, TensorRef

DEPTH = 64
"""Lists, tuples and mappings inside each other."""
LONGEST_TEXT = 4096
"""Characters of a string in a graph."""
_LARGEST_INTEGER = 2**63 - 1

RECORDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Axis, Clamp, ConvGeometry, Dynamic, ElementFunction, FloatResult, Handled, Means, QScheme, RecurrentShape,
        SharedWith, TensorInfo, TensorRef,
    )
}  # fmt: skip
"""Classes of plain data that a file may hold. ``Fixed`` holds tensors, and is written with the plan."""

ADDED: dict[str, dict[str, Any]] = {
    "Dynamic": {"per": "tensor"},
    "QScheme": {"power_of_two": False},
    "TensorInfo": {"strided": True},
}
"""Class -> fields that it has got since files are written, with what stands in their place in files without them. They
are written only where they hold anything else."""

_HINTS = {kind: typing.get_type_hints(kind) for kind in RECORDS.values()}

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
        *("complex64", "complex128"),
    )
}
_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DEVICES = ("cpu", "cuda", "meta", "mps", "xpu")


def _name_of(table: Mapping[str, Any], value: Any) -> str | None:
    return next((name for name, item in table.items() if item is value), None)


def encode(value: Any) -> Any:
    """Write a value as JSON.

    Raises:
        ArtifactError: no file can hold it; the message shows the value and its type.
    """
    # What JSON has; floats only if they are finite.
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and abs(value) <= _LARGEST_INTEGER:
        return value
    if type(value) is str and len(value) <= LONGEST_TEXT:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"f": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    # Nodes and containers: an object with one letter as key, which says what it is.
    if isinstance(value, Node):
        return {"n": value.name}
    if value is Ellipsis:
        return {"e": 0}
    if type(value) in (list, immutable_list):
        return {"l": [encode(item) for item in value]}
    if type(value) is torch.Size:
        return {"z": [encode(item) for item in value]}
    if type(value) is tuple:
        return {"u": [encode(item) for item in value]}
    if type(value) in (dict, immutable_dict):
        return {"d": [[encode_key(key), encode(item)] for key, item in value.items()]}
    if type(value) is slice:
        return {"s": [encode(part) for part in (value.start, value.stop, value.step)]}
    return _encode_named(value)


_KEYS = (str, int, float, bool, type(None), type(...), torch.dtype, torch.device, torch.memory_format, torch.Size)
"""Classes of values that may be keys of a dict, beside tuples of them."""


def _may_be_key(value: Any) -> bool:
    return all(map(_may_be_key, value)) if type(value) is tuple else type(value) in _KEYS


def encode_key(key: Any) -> Any:
    """Write a key of a dict. NaN is ``math.nan`` alone: another one is not found again by it.

    Raises:
        ArtifactError: it is no plain value, and no tuple of such.
    """
    if not _may_be_key(key) or (isinstance(key, float) and math.isnan(key) and key is not math.nan):
        raise ArtifactError(
            "a file cannot hold a dict with this key",
            got=f"{_shown(key)} (a {type(key).__name__})",
            expected="strings, numbers, None, dtypes, devices, and tuples of them; of NaN, math.nan",
        )
    return encode(key)


def decode_key(data: Any, depth: int = DEPTH) -> Any:
    """Read what ``encode_key`` wrote.

    Raises:
        ArtifactError: it is no key.
    """
    key = decode(data, None, depth)
    if not _may_be_key(key):
        raise ArtifactError("the file holds a dict with a key that is no plain value", got=_shown(data))
    return key


def _encode_named(value: Any) -> Any:
    if isinstance(value, torch.dtype) and (name := _name_of(DTYPES, value)):
        return {"t": name}
    if isinstance(value, torch.memory_format) and (name := _name_of(_FORMATS, value)):
        return {"m": name}
    if isinstance(value, torch.device) and value.type in _DEVICES:
        return {"dev": [value.type, value.index]}
    if RECORDS.get(type(value).__name__) is type(value):
        name, later = type(value).__name__, ADDED.get(type(value).__name__, {})
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        given = {key: item for key, item in held.items() if key not in later or item != later[key]}
        return {"o": name, "v": {key: encode(item) for key, item in given.items()}}
    if callable(value) and (name := name_of(value)):
        return {"c": name}
    raise ArtifactError(
        "a file cannot hold this value",
        got=f"{_shown(value)} (a {type(value).__name__})",
        expected="numbers, strings, dtypes, devices, slices, lists, tuples and dicts of them",
    )


def _shown(value: object) -> str:
    return ascii(value)[:120]


def decode(data: Any, node: Callable[[str], Node] | None = None, depth: int = DEPTH) -> Any:
    """Read a value that ``encode`` wrote.

    Args:
        data: What the JSON parser gave.
        node: Finds a node by its name. None where no node may stand.
        depth: How many levels may follow.

    Raises:
        ArtifactError: ``encode`` writes no such thing, or a class of plain data refuses what it is given.
    """
    if depth <= 0:
        raise ArtifactError("the file nests values too deep", expected=f"at most {DEPTH} levels")
    if data is None or isinstance(data, bool):
        return data
    if isinstance(data, int) and abs(data) <= _LARGEST_INTEGER:
        return data
    if isinstance(data, float) and math.isfinite(data):
        return data
    if isinstance(data, str) and len(data) <= LONGEST_TEXT:
        return data
    if isinstance(data, dict) and set(data) == {"o", "v"}:
        return _decode_record(data, depth)
    if isinstance(data, dict) and len(data) == 1:
        ((tag, content),) = data.items()
        if tag == "n" and node is not None and isinstance(content, str):
            return node(content)
        if (reader := _READERS.get(tag)) is not None:
            return reader(content, Inner(node, depth - 1))
    raise ArtifactError("the file holds no value here that can be read", got=_shown(data))


def _decode_record(data: Mapping[str, Any], depth: int) -> Any:
    kind, given = RECORDS.get(data["o"]) if isinstance(data["o"], str) else None, data["v"]
    if kind is None or not isinstance(given, dict):
        raise ArtifactError("the file holds a record of an unknown kind", got=_shown(data["o"]))
    hints = _HINTS[kind]
    later = ADDED.get(kind.__name__, {})
    if {*given, *later} != {field.name for field in fields(kind)}:
        raise ArtifactError("a record in the file has other fields", at=kind.__name__, got=_shown(sorted(given)))
    values = {name: decode(item, None, depth - 1) for name, item in given.items()}
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise ArtifactError(
                "a field of a record has the wrong type", at=f"{kind.__name__}.{name}", got=_shown(value)
            )
    return kind(**{**later, **values})


@dataclass(frozen=True, slots=True)
class Inner:
    """Reads what stands within a value."""

    node: Callable[[str], Node] | None
    depth: int

    def __call__(self, data: Any) -> Any:
        return decode(data, self.node, self.depth)


Reader = Callable[[Any, Inner], Any]


def _items(content: Any, inner: Callable[[Any], Any]) -> list[Any]:
    if not isinstance(content, list):
        raise ArtifactError("the file holds no list where one is needed", got=_shown(content))
    return [inner(item) for item in content]


def _from(table: Mapping[str, Any]) -> Reader:
    def read(content: Any, inner: Inner) -> Any:
        if not isinstance(content, str) or content not in table:
            raise ArtifactError("the file names something that it may not hold", got=_shown(content))
        return table[content]

    return read


def _function(content: Any, inner: Inner) -> Callable[..., Any]:
    found = function_called(content) if isinstance(content, str) else None
    if found is None:
        raise ArtifactError("the file names something that it may not hold", got=_shown(content))
    return found


def _dict(content: Any, inner: Inner) -> dict[Any, Any]:
    pairs = _items(content, lambda item: item)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ArtifactError("the file holds a dict that is no list of pairs", got=_shown(content))
    found = {decode_key(key, inner.depth): inner(item) for key, item in pairs}
    if len(found) != len(pairs):
        raise ArtifactError("the file holds a dict with a key twice", got=_shown(content))
    return found


def _slice(content: Any, inner: Inner) -> slice:
    parts = _items(content, inner)
    if len(parts) != 3:
        raise ArtifactError("the file holds a slice of other than three parts", got=_shown(content))
    return slice(*parts)


def _size(content: Any, inner: Inner) -> torch.Size:
    parts = _items(content, inner)
    if not all(type(part) is int and part >= 0 for part in parts):
        raise ArtifactError("the file holds a size that is none", got=_shown(content))
    return torch.Size(parts)


def _device(content: Any, inner: Inner) -> torch.device:
    parts = _items(content, inner)
    index = parts[1] if len(parts) == 2 else -1
    if not (len(parts) == 2 and parts[0] in _DEVICES and (index is None or (type(index) is int and 0 <= index < 128))):
        raise ArtifactError("the file names a device that it may not hold", got=_shown(content))
    return torch.device(parts[0]) if index is None else torch.device(parts[0], index)


def _ellipsis(content: Any, inner: Inner) -> Any:
    return Ellipsis


_READERS: dict[str, Reader] = {
    "f": _from(_FLOATS),
    "t": _from(DTYPES),
    "m": _from(_FORMATS),
    "c": _function,
    "dev": _device,
    "e": _ellipsis,
    "l": _items,
    "u": lambda content, inner: tuple(_items(content, inner)),
    "z": _size,
    "d": _dict,
    "s": _slice,
}
"""Tag -> what reads the content."""


def fits(value: object, hint: Any) -> bool:
    """Tell whether a value has the type of an annotation.

    Numbers are strict: a truth value is no integer. An integer stands for a float, as Python has it.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    # One of several types, or of several values.
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    # Containers, with their elements.
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is list:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(key, arguments[0]) for key in value)
    if origin is not None:
        return callable(value)
    # Plain types, where a bool is no number.
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)
