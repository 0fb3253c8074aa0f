"""What ``search_precision`` may choose from: names of bits, or configurations of the user's."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fxquant.errors import InputError, SpecError, UnknownNameError
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.inputs import describe_value
from fxquant.observers import MinMaxObserver, MSEObserver, PerChannelMinMaxObserver
from fxquant.observers.constructor import Constructor
from fxquant.plan.precision import Choice
from fxquant.plan.qconfig import QConfig
from fxquant.registry import did_you_mean

CANDIDATES = ("W4A4", "W4A8", "W8A8", "int16", "float")
"""What is chosen from unless the user says so; what a back end has no operator for is left out there."""

SYNONYMS = {"int8": "W8A8", "int16": "W16A16"}
EXPECTED = "W4A8 (4 bits for weights, 8 for activations; 2 to 16 each), int8, int16 or float"
FEWEST, MOST = 2, 16
_DTYPES = {
    (True, False): torch.int8,
    (False, False): torch.uint8,
    (True, True): torch.int16,
    (False, True): torch.uint16,
}
"""Signed, more than 8 bits -> the dtype that observers name."""
LEAST_ERROR_BELOW = 8
"""Bits. A weight that is given fewer has the range of least squared error, not that of its extremes."""


def choices_of(candidates: object) -> tuple[Choice, ...]:
    """Return the choices that an argument means.

    Args:
        candidates: None, names, ``Choice`` objects, or names with a ``QConfig`` each (None: float).

    Raises:
        UnknownNameError: a name says no number of bits.
        InputError: it is something else, or there are fewer than two.
    """
    if candidates is None:
        candidates = CANDIDATES
    if isinstance(candidates, Mapping):
        found = [_of_qconfig(str(name), qconfig) for name, qconfig in candidates.items()]
    elif isinstance(candidates, Iterable) and not isinstance(candidates, str):
        found = [each if isinstance(each, Choice) else _of_name(each) for each in candidates]
    else:
        raise InputError("candidates is no list of choices", got=describe_value(candidates), expected=EXPECTED)
    by_name = {choice.name: choice for choice in found}
    if len(by_name) < 2:
        raise InputError(
            "there is nothing to choose from",
            got=", ".join(by_name) or "no candidate",
            expected='two candidates or more, such as ["W4A8", "W8A8"]',
        )
    return tuple(by_name.values())


def _of_name(name: object) -> Choice:
    if name == "float":
        return Choice("float", None, None)
    if isinstance(name, str) and (bits := re.fullmatch(r"W(\d+)A(\d+)", SYNONYMS.get(name, name))):
        weight, activation = int(bits[1]), int(bits[2])
        if FEWEST <= weight <= MOST and FEWEST <= activation <= MOST:
            return Choice(name, weight, activation)
    hint = did_you_mean(str(name), (*CANDIDATES, *SYNONYMS))
    raise UnknownNameError("unknown candidate", got=repr(name), expected=EXPECTED, hint=hint)


def _of_qconfig(name: str, qconfig: object) -> Choice:
    if qconfig is None:
        return Choice(name, None, None)
    if not isinstance(qconfig, QConfig):
        raise InputError(
            f"candidate {name!r} is no configuration", got=describe_value(qconfig), expected="a QConfig, or None: float"
        )
    schemes = qconfig.weight_scheme, qconfig.activation_scheme
    weight, activation = (None if scheme is None else scheme.bits for scheme in schemes)
    return Choice(name, weight, activation, qconfig)


def with_bits(observer: Any, bits: int, *, is_weight: bool = False) -> Any:
    """Return the constructor of an observer like another one, for another number of bits.

    A range that leaves out the lowest integer goes on doing so. Weights of fewer than 8 bits get the range of least
    squared error in place of that of their extremes, unless they had as many bits already.

    Raises:
        SpecError: an observer of the user's that takes no number of bits.
    """
    made = observer()
    scheme = observer_in(made).scheme
    if scheme is None or scheme.bits == bits:
        return observer
    arguments = dict(getattr(observer, "arguments", {}))
    target = getattr(observer, "target", observer)
    if not isinstance(target, type):
        raise SpecError("an observer takes no number of bits", got=repr(observer), expected="a class, or its with_args")
    narrow = scheme.limits is not None and scheme.quant_min == scheme.full_range[0] + 1
    lowest = 1 - (1 << (bits - 1)) if narrow and scheme.signed else None
    if scheme.power_of_two or "scheme" in arguments:  # torch's words do not say all of it
        for name in ("bits", "dtype", "qscheme", "quant_min", "quant_max", "reduce_range", "group_size"):
            arguments.pop(name, None)
        arguments["scheme"] = replace(scheme, bits=bits, limits=None if lowest is None else (lowest, -lowest))
    else:
        for name in ("quant_min", "quant_max", "reduce_range"):
            arguments.pop(name, None)
        arguments |= {
            "bits": bits,
            "dtype": _DTYPES[scheme.signed, bits > 8],
        }
        if lowest is not None:
            arguments |= {"quant_min": lowest, "quant_max": -lowest}
        elif observer_in(made) is not made:  # the limits of a fake-quantize module are 0 and 255 unless it is told
            low, high = replace(scheme, bits=bits, limits=None).full_range
            arguments |= {"quant_min": low, "quant_max": high}
        if scheme.axis is not None:
            arguments.setdefault("ch_axis", scheme.axis)
        if "qscheme" not in arguments:
            kind = "symmetric" if scheme.symmetric else "affine"
            arguments["qscheme"] = f"per_{'tensor' if scheme.axis is None else 'channel'}_{kind}"
    if is_weight and bits < LEAST_ERROR_BELOW and target in (MinMaxObserver, PerChannelMinMaxObserver):
        target = MSEObserver
    return Constructor(target, arguments)


@functools.lru_cache(maxsize=256)
def configured(choice: Choice, base: QConfig) -> QConfig | None:
    """Return the configuration of a unit with a choice, for a unit that has another one now; None: float.

    Raises:
        SpecError: an observer of the configuration takes no number of bits.
    """
    if choice.is_float:
        return None
    if choice.qconfig is not None:
        return choice.qconfig
    activation, weight = base.activation, base.weight
    if base.activation_scheme is not None and choice.activation is not None:
        activation = with_bits(activation, choice.activation)
    if base.weight_scheme is not None and choice.weight is not None:
        weight = with_bits(weight, choice.weight, is_weight=True)
    output = base.output
    if output is not None and choice.activation is not None:
        output = with_bits(output, choice.activation)
    return QConfig(activation=activation, weight=weight, output=output, correct_bias=base.correct_bias)
