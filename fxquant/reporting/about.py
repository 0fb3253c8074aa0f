"""What a report is of, for its title: model, weights, data, date and versions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fxquant.commandline import VERSION
from fxquant.distributed.facts import digest
from fxquant.reporting.subject import Subject

Row = tuple[str, str]
"""Label and value."""


def about_rows(subject: Subject, given: Mapping[str, str] | None = None) -> list[Row]:
    """Return what the page says below its title.

    Args:
        subject: The model.
        given: What the user says of weights, data and whatever else; it takes the place of what is found out.
    """
    found = {
        "model": subject.name,
        "weights": _weights(subject),
        "data": _data(subject),
        "date": _date(),
        "versions": f"fxquant {VERSION}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    return list({**found, **{str(label): str(value) for label, value in (given or {}).items()}}.items())


def _weights(subject: Subject) -> str:
    gm = subject.float_graph or subject.converted
    if gm is None:
        return "none"
    state = {name: value for name, value in gm.state_dict().items() if isinstance(value, Tensor)}
    on_cpu = {name: value for name, value in state.items() if not value.is_meta}
    return f"{len(state)} tensors, SHA-256 {digest(on_cpu)}…"


def _data(subject: Subject) -> str:
    statistics: Any = getattr(subject.quantizer, "calibration_statistics", None)
    if statistics is None:
        return "not kept in a converted model"
    count = int(statistics.history.batches)
    return "not calibrated" if not count else f"calibrated on {count} {'batch' if count == 1 else 'batches'}"


def _date() -> str:
    """Return the time in UTC; that of ``SOURCE_DATE_EPOCH`` where builds are to be the same."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(int(given) if given.isdigit() else None))
