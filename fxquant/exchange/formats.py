"""The formats of qparams, and how a file says which one it is of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from fxquant.errors import InputError
from fxquant.exchange import aimet_encodings, onnxruntime_overrides, own_format, tensorrt_cache
from fxquant.exchange.given import Contents
from fxquant.graph.inputs import describe_value

WRITERS: dict[str, Callable[[Any], str]] = {
    "fxquant": own_format.write,
    "onnxruntime": onnxruntime_overrides.write,
    "aimet-1.0.0": aimet_encodings.write_1,
    "aimet-2.0.0": aimet_encodings.write_2,
}
"""Name of a format -> what writes a table in it."""

_EXPECTED = (
    "qparams of fxquant, TensorQuantOverrides of ONNX Runtime, encodings of AIMET, a calibration cache of TensorRT"
)


def read_qparams(source: str | os.PathLike[str] | Mapping[str, Any]) -> Contents:
    """Read qparams of any format.

    Args:
        source: A file, or what was parsed from one.

    Raises:
        InputError: the file cannot be read, or is of no known format.
        SpecError: a scheme in it cannot exist.
    """
    if isinstance(source, Mapping):
        return _of(source)
    place = path_of(source)
    try:
        with open(place, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("the qparams cannot be read", at=place, got=str(error)[:200]) from error
    if text.startswith(tensorrt_cache.START):
        return tensorrt_cache.read(text)
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError("the qparams cannot be read", at=place, got=str(error)[:200], expected=_EXPECTED) from error
    if not isinstance(data, dict):
        raise InputError("the qparams are no JSON object", at=place, got=type(data).__name__, expected=_EXPECTED)
    return _of(data)


def path_of(path: object) -> str:
    """Return the path that a user gave.

    Raises:
        InputError: it is none.
    """
    place = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(place, str) or not place or "\0" in place:
        raise InputError("this is no path of a file", got=describe_value(path), expected="a str or a pathlib.Path")
    return place


def _of(data: Mapping[str, Any]) -> Contents:
    if data.get("format") == own_format.FORMAT:
        return own_format.read(data)
    if not all(isinstance(name, str) for name in data):
        raise InputError("names of tensors are no strings", got=ascii(list(data))[:120], expected=_EXPECTED)
    if isinstance(data.get("version"), str) and any("encodings" in key for key in data):
        return aimet_encodings.read(data)
    if data and all(isinstance(items, list) for items in data.values()):
        return onnxruntime_overrides.read(data)
    raise InputError("the qparams are of no known format", got=ascii(sorted(map(str, data)))[:120], expected=_EXPECTED)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one object")
    return found
