"""The front of a search for the bits of each layer, and what each of its points gives a layer, for the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fxquant.plan.precision import RESOURCES, Cost
from fxquant.precision.budget import in_words
from fxquant.precision.table import PrecisionPoint, PrecisionSearch
from fxquant.reporting.numbers import short

COSTS = {
    "part": "cost, as a part of all at 8 bits",
    "size": "bytes of weights",
    "bitops": "bit operations",
    "latency": "seconds",
    "activations": "bytes of activations",
}
"""What a front can be drawn against; ``part`` is the mean of all but seconds."""


def searches(results: Iterable[Any]) -> list[dict[str, Any]]:
    """Return what the page draws of each ``PrecisionSearch`` among the results.

    Returns:
        For each: ``costs``, name and label of what its points can be drawn against; ``candidates``, with their bits;
        ``layers``, one for each group; ``points`` of the front, the cheapest first, and ``found``: each has the number
        of a candidate for each layer; ``measured`` in dB, and ``notes``.
    """
    return [_search(result) for result in results if isinstance(result, PrecisionSearch)]


def _search(found: PrecisionSearch) -> dict[str, Any]:
    numbers = {choice.name: number for number, choice in enumerate(found.candidates)}
    names = [name for name in RESOURCES if found.all_at_8.of(name)]
    notes = list(found.notes)
    if found.drop is not None and found.interval is not None:
        low, high = found.interval
        notes.insert(0, f"the metric falls by {found.drop:.4g} (interval {low:.4g} to {high:.4g})")
    return {
        "costs": [{"name": name, "label": label} for name, label in COSTS.items() if name in ("part", *names)],
        "candidates": [
            {"name": each.name, "weight": each.weight, "activation": each.activation} for each in found.candidates
        ],
        "layers": [
            {
                "unit": row.unit,
                "name": row.name,
                "noise": short(row.noise),
                "together": row.together,
                "has_weight": row.weight is not None or row.size > 0,
                "has_result": row.activation is not None,
            }
            for row in found.rows
        ],
        "points": [_point(point, numbers, names) for point in found.pareto],
        "found": _point(found.point, numbers, names),
        "measured": short(found.measured),
        "notes": notes,
    }


def _point(point: PrecisionPoint, numbers: dict[str, int], names: list[str]) -> dict[str, Any]:
    cost: Cost = point.cost
    return {
        "costs": {"part": short(point.part), **{name: short(cost.of(name)) for name in names}},
        "words": ", ".join(in_words(name, cost.of(name)) for name in names),
        "sqnr": short(point.sqnr),
        "choices": [numbers[name] for name in point.choices],
    }
