"""Candidates by name and by configuration, and observers of other bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fxquant as fxq
from fxquant.errors import InputError, SpecError, UnknownNameError
from fxquant.observers.defaults import DEFAULT_QCONFIG, default_dynamic_qconfig
from fxquant.plan.precision import Choice
from fxquant.precision.choices import choices_of, configured, with_bits


def test_names_and_synonyms():
    assert choices_of(["W4A8", "int8", "int16", "float"]) == (
        Choice("W4A8", 4, 8),
        Choice("int8", 8, 8),
        Choice("int16", 16, 16),
        Choice("float", None, None),
    )
    assert [each.name for each in choices_of(None)] == ["W4A4", "W4A8", "W8A8", "int16", "float"]


def test_configurations_by_name():
    narrow = fxq.QConfig(
        activation=fxq.MinMaxObserver,
        weight=fxq.MinMaxObserver.with_args(bits=3, dtype=torch.int8, qscheme="per_tensor_symmetric"),
    )
    first, second = choices_of({"mine": narrow, "off": None})
    assert (first.weight, first.activation) == (3, 8)
    assert second.is_float
    assert configured(first, DEFAULT_QCONFIG) is narrow


@pytest.mark.parametrize("name", ["W4", "w4a8", "W1A8", "W4A17", "int4", 8])
def test_unknown_names(name):
    with pytest.raises(UnknownNameError) as caught:
        choices_of([name, "float"])
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["unknown candidate", f"  got:      {name!r}"]
    assert lines[2] == ("  expected: W4A8 (4 bits for weights, 8 for activations; 2 to 16 each), int8, int16 or float")


@pytest.mark.parametrize("given", [[], ["W4A8"], ["W4A8", "W4A8"]])
def test_nothing_to_choose_from(given):
    with pytest.raises(InputError, match="there is nothing to choose from"):
        choices_of(given)


@pytest.mark.parametrize("given", ["W4A8", 4])
def test_no_list(given):
    with pytest.raises(InputError, match="candidates is no list of choices"):
        choices_of(given)


def test_a_configuration_that_is_none():
    with pytest.raises(InputError, match="candidate 'mine' is no configuration"):
        choices_of({"mine": 4, "float": None})


@pytest.mark.parametrize("bits", [2, 4, 16])
@pytest.mark.parametrize(
    "observer",
    [
        fxq.HistogramObserver,
        fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"),
        fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=1),
        fxq.HistogramObserver.with_args(scheme=fxq.QScheme(bits=6, signed=False)),
        fxq.FakeQuantize.with_args(observer=fxq.MinMaxObserver),
        fxq.get_lsq_qconfig().activation,
        fxq.get_lsq_qconfig().weight,
        fxq.get_default_qat_qconfig().activation,
        fxq.get_default_qat_qconfig().weight,
    ],
)
def test_an_observer_of_other_bits_is_otherwise_the_same(observer, bits):
    before, after = observer().scheme, with_bits(observer, bits)().scheme
    assert after.bits == bits
    assert (after.signed, after.symmetric, after.axis) == (before.signed, before.symmetric, before.axis)
    assert with_bits(observer, before.bits) is observer


def test_a_range_without_the_lowest_integer_stays_so():
    observer = fxq.MinMaxObserver.with_args(
        dtype=torch.int8, qscheme="per_tensor_symmetric", quant_min=-127, quant_max=127
    )
    assert with_bits(observer, 4)().scheme.limits == (-7, 7)


def test_weights_of_few_bits_get_the_range_of_least_error():
    qconfig = configured(Choice("W4A8", 4, 8), DEFAULT_QCONFIG)
    assert type(qconfig.weight()) is fxq.MSEObserver
    assert qconfig.weight().scheme.axis == 0
    assert qconfig.activation == DEFAULT_QCONFIG.activation
    assert qconfig.correct_bias
    assert type(configured(Choice("int16", 16, 16), DEFAULT_QCONFIG).weight()) is fxq.PerChannelMinMaxObserver
    own = fxq.QConfig(activation=fxq.MinMaxObserver, weight=with_bits(fxq.MinMaxObserver, 4))
    assert type(configured(Choice("W4A8", 4, 8), own).weight()) is fxq.MinMaxObserver


def test_the_output_of_the_model_has_the_bits_of_other_results():
    base = fxq.QConfig(activation=fxq.HistogramObserver, weight=fxq.MinMaxObserver, output=fxq.MinMaxObserver)
    assert configured(Choice("W8A4", 8, 4), base).output().scheme.bits == 4


def test_ranges_at_run_time_take_no_bits():
    assert configured(Choice("W4A8", 4, 8), default_dynamic_qconfig).is_dynamic
    with pytest.raises(SpecError, match="takes no argument 'bits'"):
        configured(Choice("W4A4", 4, 4), default_dynamic_qconfig)


@pytest.mark.parametrize(
    "scheme",
    [
        fxq.QScheme(axis=0, symmetric=True, power_of_two=True),
        fxq.QScheme(axis=0, symmetric=True, power_of_two=True, limits=(-127, 127)),
        fxq.QScheme(axis=0, group_size=4, symmetric=True),
    ],
)
def test_the_rest_of_a_scheme_stays(scheme):
    observer = fxq.PerChannelMinMaxObserver.with_args(scheme=scheme)
    limits = None if scheme.limits is None else (-7, 7)
    for is_weight in (False, True):
        assert with_bits(observer, 4, is_weight=is_weight)().scheme == replace(scheme, bits=4, limits=limits)


def test_scales_stay_powers_of_two():
    scheme = fxq.QScheme(axis=0, symmetric=True, power_of_two=True)
    observer = with_bits(fxq.PerChannelMinMaxObserver.with_args(scheme=scheme), 4, is_weight=True)()
    observer(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
    exponents = torch.log2(observer.calculate_qparams()[0])
    assert torch.equal(exponents, exponents.round())
