"""The table of parity: a row for each unit, and the noise of what the model returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fxquant.graph.text_table import PrintedTable
from fxquant.measure.noise import UnitNoise, in_words

EQUAL_SHARE = 0.9999
"""Share of elements that an operator of the framework must have in common with the reference; of fewer than 10,000, all
but one."""

COMPARED = ("int8 = ref %", "steps", "sim = ref %", "steps", "far")

HEAD = ("unit", "pattern", "gives", *COMPARED, "alone dB", "by", "here dB", "breach")

ALIGNMENT = "lllrrrrrrlrl"

_SHOWN = 4
"""Of what the model returns, so many tensors are named."""

LEAST_OUTPUT = 10.0
"""dB: below, noise in what a model returns has more than a tenth of the power of what it should be."""

LEGEND = (
    "dB against the float model: a unit alone (* the worst), what makes most of that noise, and the model up to there."
)
NO_REFERENCE = "-: the module has no reference (it is no QuantizedModule); the simulation is compared with its results."


@dataclass(frozen=True, slots=True)
class ParityRow:
    """One unit, on the integers that the int8 model gave it; its noise, against the float model."""

    unit: str
    pattern: str
    elements: int
    native_equal: float
    """Share of elements that the int8 operator and the integer reference have in common, 0 to 1."""
    native_steps: int
    """Largest difference between these two, in steps; of float values, in whole ``FLOAT_STEP``."""
    simulation_equal: float
    """Share of elements that simulation and integer reference have in common."""
    simulation_steps: int
    """Largest difference between these two, in steps."""
    simulation_far: int
    """Elements that are no quantized value, or another one although over ``NEAR`` steps from a rounding boundary."""
    noise: UnitNoise
    """Signal to noise against the float model, of the unit alone and at this point of the model."""
    gives: Literal["int8", "float"] = "int8"
    """Whether the result is quantized, or float values that were not rounded: these may differ by less than a step."""

    has_reference: bool = True
    """False: the module is no ``QuantizedModule``, so the simulation is compared with what the module itself gives."""

    @property
    def breach(self) -> str:
        """Say what of the contract is broken; empty if nothing is."""
        allowed = 1 if self.gives == "int8" else 0
        least_equal = min(EQUAL_SHARE, 1 - 1 / max(self.elements, 1))
        if self.native_steps > allowed or self.native_equal < least_equal:
            return "the int8 operator differs from the integer reference"
        if self.simulation_steps > allowed or self.simulation_far:
            return f"the simulation differs from the {'integer reference' if self.has_reference else 'int8 operator'}"
        return ""


@dataclass(frozen=True, slots=True)
class OutputNoise:
    """One tensor of float values that the model returns."""

    name: str
    """Where it is in what is returned: ``output``, ``output[0]``, ``output['scores']``."""
    sqnr: float
    """Signal to noise of the int8 model against the float model, in dB; NaN where both give zeros alone."""

    @property
    def is_noisy(self) -> bool:
        """Tell whether it is below ``LEAST_OUTPUT``."""
        return self.sqnr < LEAST_OUTPUT

    def __str__(self) -> str:
        if math.isnan(self.sqnr):
            return f"{self.name} is 0 throughout on this batch, of which nothing can be said"
        return f"{self.name} has {in_words(self.sqnr)} dB{', mostly noise' if self.is_noisy else ''}"


@dataclass(frozen=True, slots=True)
class Parity(PrintedTable[ParityRow]):
    """The contract between simulation and int8, measured. Print it, or read ``rows``."""

    _HEAD = HEAD
    _ALIGN = ALIGNMENT
    _LEGEND = LEGEND

    rows: tuple[ParityRow, ...]
    outputs: tuple[OutputNoise, ...] = ()
    """The noise of what the model returns, whatever units it comes from."""
    unmeasured: tuple[str, ...] = ()
    """Roots of the units that a handler lowered to nodes of which nobody knows what they take."""

    def __bool__(self) -> bool:
        return True  # of a model without units, too

    @property
    def breaches(self) -> tuple[ParityRow, ...]:
        """Return the units that break the contract."""
        return tuple(row for row in self.rows if row.breach)

    def worst(self, count: int = 3) -> tuple[ParityRow, ...]:
        """Return the units that make the most noise alone, the worst first."""
        heard = [row for row in self.rows if not math.isnan(row.noise.isolated)]
        return tuple(sorted(heard, key=lambda row: row.noise.isolated)[:count])

    @property
    def noisy_outputs(self) -> tuple[OutputNoise, ...]:
        """Return what the model returns with less than ``LEAST_OUTPUT`` dB."""
        return tuple(each for each in self.outputs if each.is_noisy)

    def _sentences(self) -> list[str]:
        outputs = "".join(f"; {each}" for each in self.outputs[:_SHOWN])
        more = f"; and {len(self.outputs) - _SHOWN} more" if len(self.outputs) > _SHOWN else ""
        found = [f"{len(self.rows)} units measured, {len(self.breaches)} break the contract{outputs}{more}."]
        if any(not row.has_reference for row in self.rows):
            found.insert(0, NO_REFERENCE)
        if self.unmeasured:
            found.append(f"Lowered by a handler, and not measured: {', '.join(self.unmeasured)}.")
        return found

    def _cells(self, rows: Sequence[ParityRow]) -> list[tuple[Any, ...]]:
        worst = self.worst()
        return [
            (
                row.unit,
                row.pattern,
                row.gives,
                f"{100 * row.native_equal:.4f}" if row.has_reference else "-",
                row.native_steps if row.has_reference else "-",
                f"{100 * row.simulation_equal:.4f}",
                row.simulation_steps,
                row.simulation_far,
                f"{in_words(row.noise.isolated)}{'*' if row in worst else ' '}",
                row.noise.part,
                in_words(row.noise.accumulated),
                row.breach,
            )
            for row in rows
        ]
