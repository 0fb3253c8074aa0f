"""ONNX Runtime's ``TensorQuantOverrides``: name of a tensor -> a list of qparams, one for each channel.

Source: ``onnxruntime/python/tools/quantization/tensor_quant_overrides.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fxquant.errors import InputError
from fxquant.exchange.given import Contents, Given, shortened

_TYPE = re.compile(r"Q(U?)Int(2|4|8|16)")
_BITS = (2, 4, 8, 16)


def write(table: Any) -> str:
    """Write a table.

    Raises:
        InputError: a scheme has groups or float zero points, which the format has no words for.
    """
    data = {}
    for row in table.rows:
        for name, factor in ((row.name, 1.0), *zip(row.shared, row.factors, strict=True)):
            data[name] = _overrides(name, row.qparams.scaled(factor))
    return json.dumps(data, indent=1) + "\n"


def _overrides(name: str, qparams: Any) -> list[dict[str, Any]]:
    scheme = qparams.scheme
    if scheme.group_size is not None or scheme.float_qparams or scheme.bits > max(_BITS):
        raise InputError(
            "TensorQuantOverrides cannot hold these qparams",
            at=name,
            got=str(scheme),
            expected="integers of at most 16 bits, per tensor or per channel",
        )
    bits = next(bits for bits in _BITS if scheme.bits <= bits)
    kind: dict[str, Any] = {"quant_type": f"Q{'' if scheme.signed else 'U'}Int{bits}"}
    if scheme.axis is not None:
        kind["axis"] = scheme.axis
    scales, zero_points = shortened(qparams.scale.tolist()), qparams.zero_point.tolist()
    pairs = zip(scales, zero_points, strict=True)
    return [kind | {"scale": scale, "zero_point": zero_point} for scale, zero_point in pairs]


def read(data: Mapping[str, Any]) -> Contents:
    """Read overrides that give scale and zero point.

    Raises:
        InputError: a tensor has neither, or channels of different types.
    """
    return Contents(tuple(_given(name, items) for name, items in data.items()), True, {}, {})


def _given(name: str, items: Any) -> Given:
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise InputError("overrides of a tensor are no list of objects", at=name, got=ascii(items)[:120])
    kinds = {str(item.get("quant_type", items[0].get("quant_type"))).rpartition(".")[2] for item in items}
    kind = _TYPE.fullmatch(kinds.pop()) if len(kinds) == 1 else None
    if kind is None or not all({"scale", "zero_point"} <= set(item) for item in items):
        raise InputError(
            "overrides of a tensor give no scale and zero point of one type",
            at=name,
            got=ascii(items)[:120],
            expected='{"quant_type": "QUInt8", "scale": 0.1, "zero_point": 128}, for each channel',
        )
    signed, bits = not kind.group(1), int(kind.group(2))
    return Given(name, [item["scale"] for item in items], [item["zero_point"] for item in items], bits, signed)
