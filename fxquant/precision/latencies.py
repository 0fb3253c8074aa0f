"""Seconds of each unit in int8 and in float: given, read from a file, or measured once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fxquant.distributed.shared_numbers import shared_map
from fxquant.errors import InputError, listing, writing
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.parity import plan_of
from fxquant.measure.timing import UnitTimer
from fxquant.plan.spec import is_number
from fxquant.quantizer.quantizer import Quantizer
from fxquant.runtime import engine_of

ROUNDS = 7
"""Of which the median counts."""
FILE = "latencies.json"
KINDS = ("int8", "float")
EXPECTED = 'seconds by the name of each unit: {"conv1": {"int8": 0.0001, "float": 0.0003}}'

Latencies = Mapping[str, tuple[float, float]]
"""Root of a unit -> seconds in int8, seconds in float."""


def latencies_of(
    given: object, prepared: Quantizer, bound: Mapping[str, Any], folder: str | os.PathLike[str] | None
) -> Latencies:
    """Return what was given, what the folder holds, or what is measured now and then written into the folder.

    Args:
        given: Seconds by unit, a JSON file of them, or None.
        prepared: The calibrated model, which is converted to int8 to be measured.
        bound: A batch to measure on, by the names of the arguments.
        folder: That of the checkpoint; None: nothing is written.

    Raises:
        InputError: what was given is no such table, lacks a unit, or the back end has no operators to measure.
    """

    def of_one(_: int) -> Any:  # of the ranks that share work, since each would measure other times
        return _latencies_of(given, prepared, bound, folder)

    (found,) = shared_map("latencies", 1, of_one)
    return {root: (in_int8, in_float) for root, (in_int8, in_float) in found.items()}


def _latencies_of(
    given: object, prepared: Quantizer, bound: Mapping[str, Any], folder: str | os.PathLike[str] | None
) -> Latencies:
    file = None if folder is None else Path(folder) / FILE
    if given is None and file is not None and file.exists():
        given = file
    if given is not None:
        return _checked(given, prepared)
    if not prepared.backend.has_operators:
        raise InputError(
            f"backend {prepared.backend.name!r} has no operators whose latency could be measured",
            got="a budget of latency",
            expected=f"latencies={EXPECTED}",
        )
    found = _measured(prepared, bound)
    if file is not None:
        with writing("the latencies", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            table = {root: dict(zip(KINDS, seconds, strict=True)) for root, seconds in found.items()}
            file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return found


def _measured(prepared: Quantizer, bound: Mapping[str, Any]) -> Latencies:
    int8 = prepared.convert()
    units = tuple(unit for unit in plan_of(int8).units if set(unit.roles) != {"weight"})
    timer = UnitTimer(prepared.graph_module, int8, units, bound, engine_of(int8) is not None)
    with torch.no_grad(), unchanged_state(prepared.graph_module):
        for _ in range(ROUNDS):
            timer.round()
    in_int8, in_float = timer.in_int8, timer.in_float
    return {unit.root: (in_int8[unit.root], in_float[unit.root]) for unit in units}


def _checked(given: object, prepared: Quantizer) -> Latencies:
    table = _read(given) if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(table, Mapping):
        raise InputError("latencies is no table of seconds", got=type(table).__name__, expected=EXPECTED)
    wrong = [str(name) for name, row in table.items() if not _is_row(row)]
    known = {unit.root for unit in prepared.plan.units}
    unknown = [str(name) for name in table if name not in known]
    lacking = sorted(unit.root for unit in prepared.plan.units if "weight" in unit.roles and unit.root not in table)
    for what, names in (
        ("latencies has rows without seconds in int8 and in float", wrong),
        ("latencies has unknown units", unknown),
        ("latencies lacks units", lacking),
    ):
        if names:
            raise InputError(what, got=listing(names), expected=EXPECTED)
    return {str(name): (float(row["int8"]), float(row["float"])) for name, row in table.items()}


def _is_row(row: object) -> bool:
    seconds: Sequence[Any] = [row.get(kind) for kind in KINDS] if isinstance(row, Mapping) else []
    return len(seconds) == len(KINDS) and all(is_number(each) and each >= 0 for each in seconds)


def _read(path: str | os.PathLike[str]) -> object:
    try:
        found: object = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "the file of latencies cannot be read", at=str(path), got=str(error), expected="JSON"
        ) from error
    return found
