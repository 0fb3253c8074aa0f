from __future__ import annotations

import copy

import pytest
import torch

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError
from fxquant.reporting.subject import subject_of
from fxquant.reporting.watching import WATCHED_BATCHES, watch


def test_parity_is_measured_and_values_are_seen(calibrated: fxq.Quantizer) -> None:
    subject, x = subject_of(calibrated), calibrated.example_args[0]
    state = copy.deepcopy(calibrated.state_dict())
    parity, seen = watch(subject, [x] * (WATCHED_BATCHES + 2))
    assert parity is not None
    assert parity.breaches == ()
    assert {row.unit for row in parity.rows} == {unit.root for unit in calibrated.plan.units}
    min_max = [ref.name for ref, policy in calibrated.plan.policies.items() if "MinMax" in repr(policy)]
    for name in set(min_max) & {node.name for node in calibrated.graph.nodes}:
        assert seen[name].counts.sum() > 0
    assert all(not isinstance(subject.observers.get(name), fxq.HistogramObserver) for name in seen)
    assert all(torch.equal(value, state[name]) for name, value in calibrated.state_dict().items())


def test_an_uncalibrated_model_has_no_parity(planned: fxq.Quantizer) -> None:
    parity, _ = watch(subject_of(planned), [planned.example_args[0]])
    assert parity is None


def test_what_cannot_be_measured_is_refused(calibrated: fxq.Quantizer) -> None:
    subject = subject_of(calibrated)
    with pytest.raises(CalibrationError, match="there is no data to report on"):
        watch(subject, [])
    with pytest.raises(InputError, match="must be an iterable of batches"):
        watch(subject, calibrated.example_args[0])
    with pytest.raises(InputError, match="batch 0 of data is of the wrong kind"):
        watch(subject, [torch.zeros(2, 3, 8, 8, dtype=torch.int64)])
    with pytest.raises(InputError, match="a converted model has no float model to measure against"):
        watch(subject_of(fxq.convert(calibrated)), [calibrated.example_args[0]])
