from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.reporting.subject import subject_of


def test_an_uncalibrated_quantizer_says_what_is_missing(planned: fxq.Quantizer) -> None:
    subject = subject_of(planned)
    assert (subject.name, subject.kind) == ("Net", "planned")
    assert subject.converted is None
    assert "values have no range" in subject.note
    assert subject.snapshots == planned.snapshots


def test_a_calibrated_quantizer_is_converted_and_left_alone(calibrated: fxq.Quantizer) -> None:
    passes = calibrated.snapshots
    subject = subject_of(calibrated)
    assert subject.kind == "calibrated"
    assert subject.plan.qparams
    assert [each.name for each in subject.snapshots][-1] == "eliminate_dead_code"
    assert calibrated.snapshots == passes
    assert set(subject.observers) == set(dict(calibrated.observers.named_children()))


def test_a_converted_model_keeps_its_coverage_also_when_pickled(calibrated: fxq.Quantizer) -> None:
    int8 = pickle.loads(pickle.dumps(fxq.convert(calibrated)))
    subject = subject_of(int8)
    assert (subject.kind, subject.float_graph) == ("converted", None)
    assert subject.coverage == calibrated.coverage()


def test_a_backend_that_only_simulates() -> None:
    prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4), backend="reference")
    subject = subject_of(fxq.calibrate(prepared, [torch.randn(2, 4)], progress=False))
    assert subject.converted is subject.simulated


def test_a_model_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    qat = fxq.prepare_qat(model, torch.randn(2, 3, 8, 8))
    assert subject_of(qat).kind == "planned"
    qat(torch.randn(2, 3, 8, 8))
    subject = subject_of(qat)
    assert subject.kind == "calibrated"
    assert [row.fate for row in subject.coverage] == ["int8"]


def test_what_is_no_such_model_is_refused() -> None:
    with pytest.raises(InputError) as refusal:
        subject_of(nn.Linear(2, 2))
    assert str(refusal.value) == (
        "report takes what prepare, prepare_qat or convert gave\n"
        "  got:      Linear\n"
        "  expected: a Quantizer, or the GraphModule of prepare_qat or convert\n"
        "  hint:     fxquant.report(fxquant.prepare(model, example_inputs), path) reports on a float model"
    )
