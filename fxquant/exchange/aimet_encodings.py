"""AIMET's encodings, versions 1.0.0 and 2.0.0.

Source: the "Encoding Format Specification" of AIMET. Version 1.0.0 has quantized values from 0 on, and an offset that
is added to them: minus the zero point of unsigned values. Version 2.0.0 has the words of ``onnx::QuantizeLinear``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fxquant.errors import InputError
from fxquant.exchange.given import Contents, Given, shortened

_DTYPE = re.compile(r"(u?)int(2|4|8|16|32)")
_FLOAT = re.compile(r"b?float(8\w*|16|32)")
_BITS = (2, 4, 8, 16)


def write_1(table: Any) -> str:
    """Write version 1.0.0.

    Raises:
        InputError: a scheme has float zero points.
    """
    lists: dict[str, list[Any]] = {"activation": [], "weight": []}
    for row in table.rows:
        for name, factor in ((row.name, 1.0), *zip(row.shared, row.factors, strict=True)):
            lists[row.kind].append(_encoding_1(name, row.qparams.scaled(factor)))
    data = {"version": "1.0.0", "activation_encodings": lists["activation"], "param_encodings": lists["weight"]}
    return json.dumps(data, indent=1) + "\n"


def _encoding_1(name: str, qparams: Any) -> dict[str, Any]:
    scheme = _checked(name, qparams)
    kind = "PER_TENSOR" if scheme.axis is None else "PER_CHANNEL" if scheme.group_size is None else "PER_BLOCK"
    half = 2 ** (scheme.bits - 1) if scheme.signed else 0
    data = {"name": name, "enc_type": kind, "dtype": "INT", "bw": scheme.bits, "is_sym": scheme.symmetric}
    if scheme.group_size is not None:
        data["block_size"] = scheme.group_size
    scale, zero_point = qparams.scale.flatten(), qparams.zero_point.flatten()
    return data | {"scale": shortened(scale.tolist()), "offset": [-int(point) - half for point in zero_point]}


def write_2(table: Any) -> str:
    """Write version 2.0.0.

    Raises:
        InputError: a scheme has float zero points.
    """
    encodings = [
        _encoding_2(name, row.qparams.scaled(factor))
        for row in table.rows
        for name, factor in ((row.name, 1.0), *zip(row.shared, row.factors, strict=True))
    ]
    return json.dumps({"version": "2.0.0", "encodings": encodings}, indent=1) + "\n"


def _encoding_2(name: str, qparams: Any) -> dict[str, Any]:
    scheme = _checked(name, qparams)
    bits = next(bits for bits in _BITS if scheme.bits <= bits)
    data: dict[str, Any] = {"name": name, "output_dtype": f"{'' if scheme.signed else 'u'}int{bits}"}
    scale, zero_point = shortened(qparams.scale.tolist()), qparams.zero_point.tolist()
    if scheme.axis is None:
        return data | {"y_scale": scale[0], "y_zero_point": zero_point[0]}
    data |= {"y_scale": scale, "y_zero_point": zero_point}
    if scheme.group_size is None:
        return data | {"axis": scheme.axis}
    return data | {"axis": scheme.axis + 1, "block_size": scheme.group_size}


def _checked(name: str, qparams: Any) -> Any:
    if qparams.scheme.float_qparams or qparams.scheme.bits > max(_BITS):
        raise InputError(
            "AIMET's encodings cannot hold these qparams",
            at=name,
            got=str(qparams.scheme),
            expected="integers of at most 16 bits",
        )
    return qparams.scheme


def read(data: Mapping[str, Any]) -> Contents:
    """Read either version.

    Raises:
        InputError: another version, or an encoding that is not of integers.
    """
    version = data.get("version")
    if version == "1.0.0":
        lists = [data.get(f"{kind}_encodings", []) for kind in ("activation", "param")]
        items, one = _items(lists), _given_1
    elif version == "2.0.0":
        items, one = _items([data.get("encodings", [])]), _given_2
    else:
        raise InputError("unknown version of AIMET's encodings", got=ascii(version)[:40], expected="1.0.0 or 2.0.0")
    floats = tuple(item["name"] for item in items if _is_float(item))
    return Contents(tuple(one(item) for item in items if not _is_float(item)), True, {}, {}, floats)


def _items(lists: list[Any]) -> list[dict[str, Any]]:
    items = [item for each in lists if isinstance(each, list) for item in each]
    if not all(isinstance(each, list) for each in lists) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) for item in items
    ):
        raise InputError("AIMET's encodings are no lists of objects with a name", got=ascii(lists)[:120])
    return items


def _is_float(item: dict[str, Any]) -> bool:
    """Tell whether an encoding says that its tensor stays float: it gives no qparams."""
    return item.get("dtype") == "FLOAT" or _FLOAT.fullmatch(str(item.get("output_dtype"))) is not None


def _given_1(item: dict[str, Any]) -> Given:
    bits, offset = item.get("bw"), item.get("offset")
    if item.get("dtype") != "INT" or type(bits) is not int or not isinstance(offset, list) or "scale" not in item:
        raise _no_integers(item, 'dtype "INT", with bw, scale and offset')
    if not all(isinstance(number, int) for number in offset):
        raise _no_integers(item, "whole numbers as offset")
    return Given(item["name"], item["scale"], [-number for number in offset], bits, False)


def _given_2(item: dict[str, Any]) -> Given:
    dtype = _DTYPE.fullmatch(str(item.get("output_dtype")))
    if dtype is None or "y_scale" not in item or isinstance(item["y_scale"], dict):
        raise _no_integers(item, "output_dtype of integers, with y_scale")
    zero_point = item.get("y_zero_point")
    points = 0 if zero_point is None else zero_point
    return Given(item["name"], item["y_scale"], points, int(dtype.group(2)), not dtype.group(1))


def _no_integers(item: dict[str, Any], expected: str) -> InputError:
    return InputError(
        "an encoding is none of integers", at=ascii(item["name"]), got=ascii(item)[:160], expected=expected
    )
