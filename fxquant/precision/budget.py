"""Budgets: the most that a model may cost in size, bit operations, latency or bytes of activations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fxquant.errors import InputError
from fxquant.plan.precision import Cost
from fxquant.plan.spec import is_number

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_BYTES = {f"{prefix}B": factor for prefix, factor in {**_PREFIXES, **_BINARY}.items()}
UNITS: dict[str, dict[str, float]] = {
    "size": _BYTES,
    "bitops": {f"{prefix}bitops": factor for prefix, factor in _PREFIXES.items()},
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
    "activations": _BYTES,
}
"""Resource -> unit -> what a number with it is multiplied by: bytes, bit operations, seconds."""
EXAMPLES = {"size": "3.1MB", "bitops": "2.5Gbitops", "latency": "4ms", "activations": "500kB"}

Limit = float | str | None


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that the units of a model may cost together. Several limits hold at once.

    Each is a part of what all units at 8 bits cost, above 0 and at most 1, or an absolute number with its unit. Counted
    are the units that have a choice: what stays float in any case is in neither number.

    Args:
        size: Bytes of weights, without scales: ``0.5``, ``"3.1MB"``.
        bitops: Multiply-accumulates times the bits of the weight times those of the activation, on the example inputs:
            ``0.25``, ``"2.5Gbitops"``.
        latency: Seconds of all units, measured on this machine or given: ``0.9``, ``"4ms"``.
        activations: Bytes of the values that units give, on the example inputs: ``"500kB"``.

    Raises:
        InputError: a number is out of range or has no known unit, or there is no limit at all.
    """

    size: Limit = None
    bitops: Limit = None
    latency: Limit = None
    activations: Limit = None

    def __post_init__(self) -> None:
        for name in self.names:
            _checked(name, getattr(self, name))
        if not self.names:
            raise InputError("a budget limits something", got="Budget()", expected="Budget(size=0.5), for example")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the resources that it limits."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)

    def limit(self, resource: str, all_at_8: Cost) -> float:
        """Return the limit of a resource as a number: bytes, bit operations or seconds.

        Args:
            resource: One of ``names``.
            all_at_8: What all units at 8 bits cost.
        """
        value = getattr(self, resource)
        return _absolute(resource, value) if isinstance(value, str) else float(value) * all_at_8.of(resource)


def _checked(name: str, value: object) -> None:
    if isinstance(value, str):
        _absolute(name, value)
    elif not is_number(value) or not 0 < value <= 1:  # type: ignore[operator]  # it is a number
        raise InputError(
            f"the budget of {name} is out of range",
            got=repr(value),
            expected=f'a part of what all units at 8 bits cost, in (0, 1], or a number with a unit: "{EXAMPLES[name]}"',
        )


def _absolute(name: str, text: str) -> float:
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(\D+?)\s*", text)
    if found is None or found[2] not in UNITS[name] or float(found[1]) <= 0:
        raise InputError(
            f"the budget of {name} has no known unit",
            got=repr(text),
            expected=f"a number above 0 with one of {', '.join(UNITS[name])}",
            hint=f'"{EXAMPLES[name]}", for example; a part of what all units at 8 bits cost is a number without quotes',
        )
    return float(found[1]) * UNITS[name][found[2]]


def in_words(resource: str, value: float) -> str:
    """Write a cost as people read it."""
    name = {"bitops": "bitops", "latency": "s"}.get(resource, "B")
    if resource == "latency":
        return f"{1e3 * value:.4g} ms"
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{name}"
    return f"{value:.4g} {name}"


def unreachable(
    budget: Budget, resources: Sequence[str], least: Cost, all_at_8: Cost, left_out: Sequence[str] = ()
) -> InputError:
    """Return the error of a budget that not even the least choices keep to.

    Args:
        budget: What was asked for.
        resources: Those that cannot be kept.
        least: The least that each can come to.
        all_at_8: What all units at 8 bits cost.
        left_out: Sentences about the candidates that the back end cannot run.
    """

    def part(name: str) -> str:
        whole = all_at_8.of(name)
        return f" ({least.of(name) / whole:.4g} of all at 8 bits)" if whole else ""

    hints = []
    if {*resources} - {"latency"}:
        hints.append("a candidate with fewer bits lowers what can be reached")
    if "latency" in resources:
        hints.append("the int8 operator of a unit takes as long with fewer bits, so that only a larger latency helps")
    together = " together" if len(resources) > 1 else ""
    return InputError(
        f"the budget cannot be reached{together}",
        got=", ".join(f"{name}={getattr(budget, name)!r}" for name in resources),
        expected="; ".join(f"{name}: at least {in_words(name, least.of(name))}{part(name)}" for name in resources),
        hint="; ".join([*hints, *left_out]),
    )
