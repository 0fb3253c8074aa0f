"""The lossless format: JSON that people edit, a line for each tensor."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from fxquant.errors import InputError, SpecError, error_context
from fxquant.exchange.given import Contents, Given, Means, ends_of, short, shortened
from fxquant.plan.spec import QScheme

FORMAT = "fxquant.qparams"
VERSION = 1
_SCHEME = ("bits", "signed", "symmetric", "axis", "group_size", "limits")
_FLAGS = ("float_qparams", "power_of_two")
"""Written where they are true."""
_FIELDS = {"kind", *_SCHEME, *_FLAGS, "scale", "zero_point", "shared", "range"}


def write(table: Any) -> str:
    """Write a table. ``range`` is for people: ``scale`` and ``zero_point`` decide."""
    sections: dict[str, dict[str, Any]] = {
        "tensors": {row.name: _tensor(row) for row in table.rows},
        "joined": {name: [short(end) for end in ends] for name, ends in table.joined.items()},
        "means": {name: {"total": list(means.total), "count": means.count} for name, means in table.means.items()},
    }
    head = f'{{\n"format": {json.dumps(FORMAT)},\n"version": {VERSION}'
    return head + "".join(f',\n"{name}": {_lines(section)}' for name, section in sections.items()) + "\n}\n"


def _lines(section: Mapping[str, Any]) -> str:
    rows = [f"{json.dumps(name)}: {json.dumps(item, allow_nan=False)}" for name, item in section.items()]
    return "{\n" + ",\n".join(rows) + "\n}" if rows else "{}"


def _tensor(row: Any) -> dict[str, Any]:
    scheme = row.qparams.scheme
    data: dict[str, Any] = {"kind": row.kind, **{name: getattr(scheme, name) for name in _SCHEME}}
    data["limits"] = None if scheme.limits is None else list(scheme.limits)
    data |= {flag: True for flag in _FLAGS if getattr(scheme, flag)}
    data["scale"] = shortened(row.qparams.scale.tolist())
    zero_point = row.qparams.zero_point.tolist()
    data["zero_point"] = shortened(zero_point) if scheme.float_qparams else zero_point
    data["shared"] = list(row.shared)
    data["range"] = [float(f"{end:.4g}") for end in ends_of(row.qparams)]
    return data


def read(data: Mapping[str, Any]) -> Contents:
    """Read what ``write`` wrote, and people have changed.

    Raises:
        InputError: it is of another form, or of a newer version.
        SpecError: a scheme cannot exist.
    """
    if type(data.get("version")) is not int or not 1 <= data["version"] <= VERSION:
        raise InputError(
            "the qparams are of a newer format", got=data.get("version"), expected=f"at most {VERSION}",
            hint="pip install -U fxquant",
        )  # fmt: skip
    sections = [data.get(name, {}) for name in ("tensors", "joined", "means")]
    if set(data) - {"format", "version", "tensors", "joined", "means"} or not all(map(_is_object, sections)):
        raise InputError(
            "the qparams have other fields", got=ascii(sorted(data))[:120], expected="tensors, joined, means"
        )
    tensors, joined, means = sections
    return Contents(
        tuple(_given(name, item) for name, item in tensors.items()),
        False,
        {name: _ends(name, ends) for name, ends in joined.items()},
        {name: _means(name, item) for name, item in means.items()},
    )


def _is_object(item: Any) -> bool:
    return isinstance(item, dict)


def _given(name: str, item: Any) -> Given:
    if not isinstance(item, dict) or not {"scale", "zero_point", "bits", "signed"} <= set(item) <= _FIELDS:
        wrong = sorted(set(item) - _FIELDS) if isinstance(item, dict) else type(item).__name__
        raise InputError(
            "qparams of a tensor have other fields",
            at=name,
            got=ascii(wrong)[:120],
            expected=", ".join(sorted(_FIELDS)),
        )
    given = {field: item[field] for field in (*_SCHEME, *_FLAGS) if field in item}
    if isinstance(given.get("limits"), list):
        given["limits"] = tuple(given["limits"])
    for field in ("signed", "symmetric", *_FLAGS):
        if not isinstance(given.get(field, False), bool):
            raise SpecError(f"{field} is neither true nor false", at=name, got=ascii(given[field])[:40])
    with error_context(at=name):
        scheme = QScheme(**given)
    shared = item.get("shared", [])
    if not isinstance(shared, list) or not all(isinstance(other, str) for other in shared):
        raise InputError("shared is no list of names", at=name, got=ascii(shared)[:120])
    if twice := sorted({other for other in shared if shared.count(other) > 1 or other == name}):
        raise InputError("shared names a tensor twice", at=name, got=ascii(twice)[:120])
    return Given(name, item["scale"], item["zero_point"], scheme.bits, scheme.signed, scheme, tuple(shared))


def _ends(name: str, ends: Any) -> tuple[float, float]:
    if not isinstance(ends, list) or len(ends) != 2 or not all(_is_number(end) for end in ends) or ends[0] > ends[1]:
        raise InputError("the range of what is joined is no pair of numbers", at=name, got=ascii(ends)[:120])
    return float(ends[0]), float(ends[1])


def _means(name: str, item: Any) -> Means:
    fits = isinstance(item, dict) and set(item) == {"total", "count"}
    if (
        not fits
        or type(item["count"]) is not int
        or not 0 <= item["count"] < 2**63
        or not isinstance(item["total"], list)
    ):
        raise InputError(
            "the means of a value have other fields", at=name, got=ascii(item)[:120], expected="total, count"
        )
    if not all(map(_is_number, item["total"])):
        raise InputError("the means of a value are no numbers", at=name, got=ascii(item["total"])[:120])
    return Means(tuple(map(float, item["total"])), item["count"])


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # of whole numbers of thousands of digits, too
