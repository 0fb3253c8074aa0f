"""What was learned is named, and refused in one layout by the functions that would lose it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.plan.spec import TensorRef
from fxquant.quantizer.learned import learned_parts, refuse_learned

PER_TENSOR = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")


@pytest.fixture(scope="module")
def data() -> list[torch.Tensor]:
    return [torch.randn(16, 4, generator=torch.Generator().manual_seed(0))]


@pytest.fixture(scope="module")
def start(data) -> fxq.Quantizer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    prepared = fxq.prepare(model, data[0], fxq.low_bit_qconfig(3, 4, ends=None))
    return fxq.calibrate(prepared, data, progress=False)


def refused(prepared: fxq.Quantizer, **options: bool) -> str:
    with pytest.raises(InputError) as caught:
        refuse_learned(prepared, "f", takes=("prepare", "calibrate"), fits="other bits", hint="call f first", **options)
    return str(caught.value)


def test_nothing_was_learned(start):
    assert learned_parts(start) == []
    refuse_learned(start, "f", takes=("prepare",), fits="other bits", hint="", or_planned=True)


def test_roundings(start, data):
    text = refused(fxq.gptq(start, data, progress=False))
    assert text.splitlines()[0] == "f takes what prepare and calibrate gave"
    assert "a Quantizer with learned roundings, which are those of other bits; these would be lost:" in text
    assert "the integers of the weight of _2" in text
    assert "expected: a Quantizer as calibrate gives it\n  hint:     call f first" in text


def test_corrected_statistics(start, data):
    corrected = fxq.correct_statistics(start, data, progress=False)
    assert "a Quantizer with corrected statistics, which" in refused(corrected)
    corrected = copy.copy(corrected)
    corrected.corrected_statistics = None  # as a file has it
    assert "a Quantizer with learned roundings, which" in refused(corrected)


def test_scales(start, data):
    learned = fxq.gptq(start, data, progress=False)
    learned.learned_qparams = {ref: start.observers[ref.name].qparams() for ref in [TensorRef("_1")]}
    assert "learned roundings and scales, which" in refused(learned)
    learned.weight_layers = nn.ModuleDict()
    text = refused(learned)
    assert "learned scales, which" in text
    assert "these would be lost:\n            the scale of _1" in text


def test_roundings_that_are_only_planned(data):
    weight = fxq.AdaRoundFakeQuantize.with_args(observer=PER_TENSOR)
    planned = fxq.prepare(
        nn.Sequential(nn.Linear(4, 2)).eval(), data[0], fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight)
    )
    assert len(planned.weight_layers) == 1
    refuse_learned(planned, "f", takes=("prepare",), fits="other bits", hint="")
    assert "a Quantizer with learned roundings, which are those of other bits\n" in refused(planned, or_planned=True)
