"""What must hold for every model, whatever it is made of."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable

import torch

from fxquant.errors import FxQuantWarning
from fxquant.kernels.library import available_isas, use_isa
from fxquant.measure.parity import measure_parity
from tests.fuzz.case import Case, facts_of, quiet
from tests.fuzz.compare import decibels, difference, floats_of, power
from tests.fuzz.fingerprint import fingerprint
from tests.fuzz.inputs import LIE_OTHERWISE, MEMORY, SPECIAL, Values, values_of
from tests.fuzz.last_bits import with_other_last_bits
from tests.fuzz.noise import NOISE_DECIBELS, with_noise
from tests.fuzz.one_element import one_element_strides
from tests.fuzz.reference import ReferenceKernels
from tests.fuzz.rounding import rounded
from tests.fuzz.training import first_step

ATTENTION_SHARE = 1e-6
"""Of the largest value: an attention or an einsum that was taken apart sums in another order."""
OWN_ERRORS = 20.0
"""How many times as far, where the float model itself is that far from what it gives in float64: a norm behind an
attention makes the last bits large."""
LAST_BITS = 2.0
"""How many times as far, where last bits of the float model's operators take it that far: large logits do, and the one
draw that the model itself is may be a lucky one."""
MARGIN_DECIBELS = 20.0
"""What int8 may be below the control: it rounds in every layer, not at the input alone."""
DRAWS_OF_BITS = 8
"""Of the last bits."""
DRAWS = 4
"""Of the control's noise, so that no lucky one decides."""
ROUNDINGS = 64
"""Draws of the second control: a few values may round well by chance."""
ROUNDING_MARGIN = 3.0
"""What int8 may be below the worst of these, in dB."""
LEAST_DECIBELS = 6.0
"""Of the second control; below, noise is half as large as the signal: a norm of rows much smaller than others, say."""
CALLS = ("example", "example", "other batch", "example", "other batch")
"""Five calls with changing shapes: the second and the fifth make a program."""


def prepared_is_float(case: Case) -> str:
    """The prepared model gives the float model's bits.

    An attention that was taken apart, or an einsum, sums in another order, and a copy of what is not dense may be made
    later: it gives them to a share of the largest value, unless the float model itself is further from what it gives
    in float64, or hangs that much on the last bits of its operators. Strides of axes with one element may differ.
    """
    prepared = case.prepared.graph_module
    for name, values in case.variants.items():
        if case.has_attention and name in (*SPECIAL, "zero", "empty"):
            # A fused attention has its own way with what overflows, with equal keys, and without any.
            case.skipped[f"{name} input of an attention: prepared = float"] += 1
            continue
        if case.has_contraction and name == "huge":
            # Whether the sum of an einsum overflows to one side, or to both and so to NaN, hangs on the order.
            case.skipped[f"{name} input of an einsum: prepared = float"] += 1
            continue
        reordered = case.has_attention or case.has_contraction or (case.has_copy and name in LIE_OTHERWISE)
        share = ATTENTION_SHARE if reordered else 0.0
        expected, got = case.run(case.model, values), case.run(prepared, values)
        found = difference(expected, got, share)
        if found and share:
            found = difference(expected, got, max(share, OWN_ERRORS * _own_error(case, values, expected)))
        if found and share:
            found = difference(expected, got, LAST_BITS * _error_of_last_bits(case, values, expected))
        if found and not share:
            with one_element_strides():
                found = difference(case.run(case.model, values), case.run(prepared, values))
        if found:
            return f"{name}: {found}"
    return ""


def _own_error(case: Case, values: Values, expected: object) -> float:
    """Of the float model against itself in float64: the largest share of a result's largest value.

    0 of a model that asks for float32 by name (``y.float()``), which does not run in float64.
    """
    doubles = tuple(value.double() if value.is_floating_point() else value for value in values)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of tensors that it makes and fills
    try:
        return _farthest(expected, case.run(copy.deepcopy(case.model).double(), doubles))
    except RuntimeError:
        return 0.0
    finally:
        torch.set_default_dtype(before)


def _error_of_last_bits(case: Case, values: Values, expected: object) -> float:
    """The same of the float model against itself with other last bits: the most of some draws."""
    return max(_farthest(with_other_last_bits(case.model, values, seed), expected) for seed in range(DRAWS_OF_BITS))


def _farthest(one: object, two: object) -> float:
    """The largest difference of two results, as a share of the second one's largest value."""
    shares = [
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(floats_of(one), floats_of(two), strict=True)
        if b.numel()
    ]
    return max(shares, default=0.0)


def program_is_graph(case: Case) -> str:
    """Programs give the graph's bits, in five calls with changing shapes, then with every kind of input; what they
    gave stays as it was, and so does what they were given."""
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", FxQuantWarning)
        for number, name in enumerate(CALLS):
            if name in case.variants:
                batch = case.variants[name][0].shape[0]
                kept.append((f"call {number + 1}", values_of(case.inputs, case.seed + 7 * number, batch)))
        kept += [(f"{name}, call {n}", values) for name, values in case.some_variants(6).items() for n in (1, 2, 3)]
        results = []
        for where, values in kept:
            before = [value.clone() for value in values]
            expected = case.run(case.graph, values)
            got = case.run(case.programs, values)
            case.calls += 2
            if found := difference(expected, got):
                return f"{where}: {found}"
            if found := difference(before, list(values)):
                return f"{where}: the input was changed: {found}"
            results.append((where, expected, got))
    for where, expected, got in results:
        if found := difference(expected, got):
            return f"{where}: a later call changed it: {found}"
    return ""


def native_is_reference(case: Case) -> str:
    """Native kernels, of one of this machine's instruction sets, give the bits of the Python reference."""
    isas = available_isas()
    if not isas:
        return ""
    isa = random.Random(case.seed).choice(isas)
    for form, model, count in (("int8", case.graph, 4), ("simulation", case.simulated, 1)):
        for name, values in case.some_variants(count).items():
            with ReferenceKernels():
                expected = case.run(model, values)
            with use_isa(isa):
                got = case.run(model, values)
            case.calls += 2 * (form == "int8")
            if found := difference(expected, got):
                return f"{form}, {name}, {isa}: {found}"
    return ""


def simulation_is_int8(case: Case) -> str:
    """Every unit keeps the contract between its operator, its reference and its simulation."""
    for name, values in case.some_variants(1, MEMORY).items():
        with quiet():
            parity = measure_parity(case.graph, case.simulated, values)
        for row in parity.breaches:
            return f"{name}: {row.unit} ({row.pattern}): {row.breach}"
    return ""


def noise_is_small(case: Case) -> str:
    """With c dB of the float model whose input carries noise at 45 dB, int8 has at least min(c, 45) − 20 dB.

    Noise at the input says little of what 8 bits cost inside: a constant result that rounds, small channels beside
    large ones, probabilities of many keys. Where int8 has less, it has at least what the float model has whose
    operators round to 8 bits.
    """
    expected = floats_of(case.expected)
    control = [0.0] * len(expected)
    for number in range(DRAWS):
        noisy = floats_of(case.run(case.model, with_noise(case, number)))
        control = [sum_ + power(two - one) / DRAWS for sum_, one, two in zip(control, expected, noisy, strict=True)]
    got = floats_of(case.run(case.graph, case.example))
    case.calls += 1
    for number, (one, two, noise) in enumerate(zip(expected, got, control, strict=True)):
        signal = power(one)
        if signal == 0 or math.isnan(noise):
            continue
        c, ours = decibels(signal, noise), decibels(signal, power(two - one))
        if not ours >= min(c, NOISE_DECIBELS) - MARGIN_DECIBELS:
            rounded_ = _decibels_of_rounding(case, number)
            if rounded_ < LEAST_DECIBELS:
                case.skipped["SQNR of a result that 8 bits lose"] += 1
            elif not ours >= rounded_ - ROUNDING_MARGIN:
                return (
                    f"result {number} has {ours:.1f} dB, where float with noise has {c:.1f} dB, and float whose "
                    f"operators round {rounded_:.1f} dB"
                )
    return ""


def _decibels_of_rounding(case: Case, number: int) -> float:
    """The least that a result of the float model has whose operators round to 8 bits."""
    expected = floats_of(case.expected)[number]
    results = (
        floats_of(rounded(case.model, case.example, seed, case.calibrated[1:]))[number] for seed in range(ROUNDINGS)
    )
    noises = [power(result - expected) for result in results]
    return min((decibels(power(expected), noise) for noise in noises if not math.isnan(noise)), default=math.inf)


def model_is_unchanged(case: Case) -> str:
    """Nothing was written into the user's model."""
    before = case.facts_before
    for form in (case.programs, case.simulated):
        case.run(form, case.example)
    case.qat_of(case.model)
    after = facts_of(case.model)
    return "; ".join(name for name in {**before, **after} if before.get(name) != after.get(name))


def training_begins_as_float(case: Case) -> str:
    """The first step of training has nearly the loss and the gradients of float, of every parameter."""
    return first_step(case)


def conversions_are_alike(case: Case) -> str:
    """Two conversions of one preparation, and two preparations of one model, are equal."""
    other = case.converted(engine="graph")
    if other.code != case.graph.code:
        return "two conversions have other code"
    if found := difference(dict(case.graph.state_dict()), dict(other.state_dict())):
        return f"two conversions have another state: {found}"
    if found := difference(case.run(case.graph, case.example), case.run(other, case.example)):
        return f"two conversions give other bits: {found}"
    again = case.again().prepared
    if fingerprint(again.graph_module) != fingerprint(case.prepared.graph_module):
        return "two preparations have other graphs"
    return ""


CHECKS: dict[str, Callable[[Case], str]] = {
    "prepared = float": prepared_is_float,
    "program = graph": program_is_graph,
    "native = reference": native_is_reference,
    "simulation = int8": simulation_is_int8,
    "SQNR": noise_is_small,
    "the model is unchanged": model_is_unchanged,
    "QAT's first step": training_begins_as_float,
    "two conversions are alike": conversions_are_alike,
}
"""Name -> what a check has found; empty if all is well. An error that is raised is a finding, too."""
