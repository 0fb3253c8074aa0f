"""Tables of what was measured per unit, whatever measured it: parity, comparison, sensitivity, time."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fxquant.errors import InputError
from fxquant.measure.coverage import Coverage
from fxquant.reporting.numbers import short

KEYS = ("unit", "node", "root")
"""Fields of a row that name the unit or the node which it is about; the first that a row has counts."""
KNOWN = ("name", "module", "line")
"""Fields of rows that the page knows of their nodes anyway."""
UNITS = {"isolated": "isolated, dB", "accumulated": "accumulated, dB", "weight": "weight, dB"}
"""Of numbers that are in no unit by name."""
HELP = {
    "Coverage": "what becomes of every unit, and of every operator that is in none",
    "Parity": "the int8 operator, its integer reference and the simulation on the same integers; "
    "signal to noise in dB against the float model: isolated, the unit alone; accumulated, the model up to there",
}


def tables(coverage: Coverage, results: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the tables of a report: coverage first, then one for each result.

    Args:
        coverage: What becomes of every unit.
        results: Objects with ``rows``, which are data classes with a field ``unit`` or ``node``: what ``compare``,
            ``convert(..., check=batch).parity`` and the like gave.

    Returns:
        For each ``{"title", "help", "columns", "numeric", "rows"}``: a row is the name of its node, then its cells.

    Raises:
        InputError: a result is no such table.
    """
    return [_coverage(coverage), *(_table(result) for result in results)]


def _coverage(coverage: Coverage) -> dict[str, Any]:
    total = sum(row.macs for row in coverage) or 1
    rows = [
        [
            row.node,
            row.operator,
            "int8 → float" if (row.fate, row.gives) == ("int8", "float") else row.fate,
            row.macs,
            short(100 * row.macs / total),
            row.reason,
            row.line,
        ]
        for row in coverage
    ]
    columns = ["unit", "becomes", "MACs", "% of MACs", "why not", "line"]
    return _as_table("Coverage", columns, rows)


def _table(result: Any) -> dict[str, Any]:
    rows = getattr(result, "rows", None)
    title = type(result).__name__
    if not isinstance(rows, (tuple, list)) or not all(dataclasses.is_dataclass(row) for row in rows):
        raise InputError(
            "this is no table of measurements",
            got=title,
            expected="what compare, sensitivity or profile gave, or the parity of a converted model",
        )
    flat = [dict(_cells(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    key = next((name for name in KEYS if name in names), "")
    if rows and not key:
        raise InputError("rows of this table name no unit", got=title, expected=f"a field named {' or '.join(KEYS)}")
    others = [name for name in names if name not in (key, *KNOWN)]
    return _as_table(title, [_label(name) for name in others], [[row[key], *map(row.get, others)] for row in flat])


def _as_table(title: str, columns: list[str], rows: list[list[Any]]) -> dict[str, Any]:
    numeric = [
        any(isinstance(row[place + 1], (int, float)) for row in rows)
        and all(_is_number(row[place + 1]) for row in rows)
        for place in range(len(columns))
    ]
    used = [place for place in range(len(columns)) if any(row[place + 1] not in (None, "") for row in rows)]
    return {
        "title": title,
        "help": HELP.get(title, ""),
        "columns": [columns[place] for place in used],
        "numeric": [numeric[place] for place in used],
        "rows": [[row[0], *(row[place + 1] for place in used)] for row in rows],
    }


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float)) or value in ("inf", "-inf", "nan")


def _cells(row: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a row, and of the rows that it holds, as what JSON has."""
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        name = f"{prefix} {field.name}".strip()
        if dataclasses.is_dataclass(value):
            yield from _cells(value, "" if field.name == "noise" else name)
        elif isinstance(value, bool) or value is None or isinstance(value, (str, int)):
            yield name, value
        elif isinstance(value, float):
            yield UNITS.get(name, name), short(value)
        elif isinstance(value, Mapping):
            yield from ((f"{name} {key}", short(item)) for key, item in value.items() if isinstance(item, float))
        elif isinstance(value, (tuple, list)):
            yield name, " ".join(map(str, value))


def _label(name: str) -> str:
    return re.sub(r"_+", " ", name)
