"""Runs a batch for a report: parity where there is an int8 model, histograms of values that calibration has none of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch

from fxquant.calibration.batches import check_iterable, inputs_of
from fxquant.calibration.interpreter import CalibrationInterpreter
from fxquant.errors import CalibrationError, InputError, error_context
from fxquant.graph.inputs import bind
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.parity import measure_parity, simulated_noise
from fxquant.measure.parity_table import Parity
from fxquant.nn.base import QuantizedModule
from fxquant.observers.histogram import HistogramObserver
from fxquant.reporting.subject import Subject

WATCHED_BATCHES = 8
"""Batches that are looked at for histograms: a picture gets no better by more."""


def watch(subject: Subject, data: Iterable[Any]) -> tuple[Parity | None, dict[str, HistogramObserver]]:
    """Measure parity on the first batch of ``data``, and take histograms on the first ``WATCHED_BATCHES``.

    Returns:
        Parity; of a model without int8 operators only the noise of what it returns, None if it was not calibrated. Then
        name of a value -> its histogram, for those whose observers keep none.

    Raises:
        InputError: there is no float graph to run, or a batch does not run.
        CalibrationError: ``data`` holds no batch.
    """
    quantizer = subject.quantizer
    if quantizer is None or subject.float_graph is None:
        raise InputError(
            "a converted model has no float model to measure against",
            got="data",
            expected="what prepare gave, or a converted model without data",
            hint="convert(prepared, check=batch) measures parity; report(prepared, path, data) shows it",
        )
    check_iterable(data)
    seen = {name: HistogramObserver() for name in _without_histogram(subject)}
    parity = None
    index = -1
    for index, batch in enumerate(islice(data, WATCHED_BATCHES)):
        what = f"batch {index} of data"
        args, kwargs = inputs_of(batch, quantizer.example_args, what, subject.float_graph)
        if index == 0:
            parity = _parity(subject, args, kwargs)
        if seen:
            bound = bind(subject.float_graph, args, kwargs, what)
            observers = {name: [observer] for name, observer in seen.items()}
            with error_context(what), torch.no_grad(), unchanged_state(subject.float_graph):
                CalibrationInterpreter(subject.float_graph, bound, observers, {}, subject.plan.rounding_inside()).run()
    if index < 0:
        raise CalibrationError("there is no data to report on", got="no batch", expected="at least one batch")
    return parity, seen


def _without_histogram(subject: Subject) -> list[str]:
    """Return the values with qparams per tensor whose observers count nothing."""
    found = []
    for ref in subject.plan.policies:
        if ref.kind == "activation":
            observer = subject.observers.get(subject.plan.qparams_owner(ref).name)
            if not isinstance(observer, HistogramObserver):
                found.append(ref.name)
    return found


def _parity(subject: Subject, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Parity | None:
    int8, simulated = subject.converted, subject.simulated
    if int8 is None or simulated is None:
        return None
    if not any(isinstance(each, QuantizedModule) for each in int8.modules()):
        return Parity((), simulated_noise(simulated, args, kwargs))
    return measure_parity(int8, simulated, args, kwargs)
