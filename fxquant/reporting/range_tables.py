"""Tables of all ranges: one of values, and one of weights, to sort, to filter and to take along as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    *("scheme", "smallest", "largest", "covers from", "covers to", "scale", "zero point"),
    *("channels", "clipped, %", "not finite", "chosen"),
)
NUMERIC = tuple(label not in ("scheme", "chosen") for label in COLUMNS)
HELP = {
    "value": "what was seen of each value, and what its qparams cover; of scales per channel, the largest",
    "weight": "what is in each weight, and what its qparams cover; of scales per channel, the largest",
}


def range_tables(tensors: Mapping[str, Mapping[str, Any]], units: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of the ranges that are known, as ``reporting.measurements.tables`` has them.

    Args:
        tensors: What ``tensor_facts`` gave.
        units: Root -> ``roles``, as ``facts`` has them: a weight stands under the unit that it is of.
    """
    roots = {name: root for root, unit in units.items() for role, name in unit["roles"].items() if role == "weight"}
    found = []
    for kind in ("value", "weight"):
        rows = [
            [roots.get(name, name.split("@")[0]), *_cells(facts)]
            for name, facts in tensors.items()
            if facts["kind"] == kind and ("min" in facts or "scheme" in facts)
        ]
        if rows:
            table = {"title": f"Ranges of {kind}s", "help": HELP[kind], "columns": list(COLUMNS)}
            found.append({**table, "numeric": list(NUMERIC), "rows": rows, "tensors": True})
    return found


def _cells(facts: Mapping[str, Any]) -> list[Any]:
    clip = facts.get("clip", (None, None))
    spread = facts.get("spread")
    clipped = facts.get("clipped")
    return [
        facts.get("scheme", ""),
        facts.get("min"),
        facts.get("max"),
        clip[0],
        clip[1],
        facts.get("scale") if spread is None else spread[2],
        facts.get("zero"),
        facts.get("channels"),
        None if clipped is None else 100 * clipped,
        facts.get("nonfinite"),
        facts.get("policy", ""),
    ]
