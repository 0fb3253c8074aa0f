"""All that a report shows, as data that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fxquant.measure.coverage import Coverage
from fxquant.measure.noise import in_words
from fxquant.measure.parity_table import LEAST_OUTPUT, OutputNoise, Parity
from fxquant.observers.histogram import HistogramObserver
from fxquant.plan.quant_plan import QuantUnit
from fxquant.reporting.drawings import FATES, drawings
from fxquant.reporting.measurements import tables
from fxquant.reporting.passes import passes
from fxquant.reporting.searches import searches
from fxquant.reporting.subject import Subject
from fxquant.reporting.tensors import tensor_facts
from fxquant.reporting.watching import watch

Row = tuple[str, str, str, bool]
"""Label, value, remark, and whether something is wrong, so that the page marks it."""


def facts(subject: Subject, data: Iterable[Any] | None = None, results: Iterable[Any] = ()) -> dict[str, Any]:
    """Gather everything, and run ``data`` where it is given.

    Returns:
        ``summary``: see ``Row``. ``fates``: name, label and meaning of what can become of a node.
        ``drawings``, ``passes``, ``searches``, ``tables``: see the modules of these names. ``units``: root -> pattern,
        nodes and ``roles``, the tensors of each. ``tensors``: see ``tensor_facts``.
    """
    kept = [getattr(subject.converted, name, None) for name in ("parity", "tuning")]
    measured = [each for each in kept if each is not None]
    seen: Mapping[str, HistogramObserver] = {}
    if data is not None:
        parity, seen = watch(subject, data)
        measured = [parity] if parity is not None else []
    given = [*measured, *results]
    return {
        "title": subject.name,
        "summary": _summary(subject, given),
        "note": subject.note,
        "fates": [dict(zip(("name", "label", "help"), fate, strict=True)) for fate in FATES],
        "drawings": drawings(subject),
        "passes": passes(subject.snapshots),
        "units": {unit.root: _unit(unit, subject) for unit in subject.planned.units},
        "tensors": tensor_facts(subject, seen),
        "searches": searches(given),
        "tables": tables(subject.coverage, [each for each in given if not isinstance(each, Parity) or each.rows]),
    }


def _unit(unit: QuantUnit, subject: Subject) -> dict[str, Any]:
    return {"pattern": unit.pattern, "nodes": list(unit.nodes), "roles": subject.tensors_of(unit)}


def _summary(subject: Subject, results: Iterable[Any]) -> list[Row]:
    """Summarize what is known, one fact a row."""
    coverage = subject.coverage
    lost = [row for row in coverage.float_rows if not row.excused]
    rows: list[Row] = [("state", subject.kind, {"planned": "not calibrated yet"}.get(subject.kind, ""), False)]
    if len(coverage):
        rows += [
            ("int8", f"{100 * coverage.int8_macs:.2f} %", _of_products(coverage), False),
            ("units", str(sum(row.fate != "float" for row in coverage)), "that compute on, or store, integers", False),
            ("float", str(len(coverage.float_rows)), f"operators, {len(lost)} of them at a cost", False),
        ]
    for result in results:
        rows += map(_output, getattr(result, "outputs", ()))
        if (breaches := getattr(result, "breaches", None)) is not None and result.rows:
            rows.append(("parity", f"{len(breaches)} breaches", f"in {len(result.rows)} units", bool(breaches)))
    if subject.converted is not None and (size := _size(subject)):
        rows.append(("size", size, "of parameters and buffers, float → quantized", False))
    return rows


def _of_products(coverage: Coverage) -> str:
    total = sum(row.macs for row in coverage)
    return f"of {total / 1e6:,.1f} M multiply-accumulates.{coverage.left_out()}".removesuffix(".")


def _output(output: OutputNoise) -> Row:
    """Show what the model returns, marked where it is mostly noise."""
    if math.isnan(output.sqnr):
        return output.name, "–", "0 throughout on this batch, of which nothing can be said", False
    remark = f"mostly noise: below {LEAST_OUTPUT:g} dB" if output.is_noisy else "signal to noise"
    return output.name, f"{in_words(output.sqnr)} dB", f"{remark}, against the float model", output.is_noisy


def _size(subject: Subject) -> str:
    sizes = [
        sum(tensor.numel() * tensor.element_size() for tensor in {id(t): t for t in gm.state_dict().values()}.values())
        for gm in (subject.float_graph, subject.converted)
        if gm is not None
    ]
    return " → ".join(f"{size / 1e6:,.1f} MB" for size in sizes)
