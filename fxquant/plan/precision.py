"""What a unit may be quantized to, and what that costs: the data of a search for the best bits of each layer."""

from __future__ import annotations

from dataclasses import dataclass

from fxquant.plan.qconfig import QConfig

FLOAT_BITS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """The bits of a unit's weight and of the values that it gives.

    Args:
        name: Such as ``"W4A8"``, ``"float"``, or one of the user's.
        weight: Bits of the weight; None: float.
        activation: Bits of the values that the unit gives, and of those that it reads from no other unit; None: float.
        qconfig: The observers of the choice; None: those of the configuration, with these bits.
    """

    name: str
    weight: int | None
    activation: int | None
    qconfig: QConfig | None = None

    @property
    def is_float(self) -> bool:
        """Tell whether the unit is not quantized at all."""
        return self.weight is None and self.activation is None

    @property
    def weight_bits(self) -> int:
        """Return the bits of a weight, 32 for one in float."""
        return FLOAT_BITS if self.weight is None else self.weight

    @property
    def activation_bits(self) -> int:
        """Return the bits of an activation, 32 for one in float."""
        return FLOAT_BITS if self.activation is None else self.activation


@dataclass(frozen=True, slots=True)
class UnitWork:
    """The size of a unit, from which its costs follow, on the example inputs."""

    macs: int
    """Multiply-accumulates."""
    weights: int
    """Values of its weight; 0 without one, and where another unit has counted it."""
    values: int
    """Values that it gives; 0 where they are not stored as integers, or are those of its input in another order."""
    has_weight: bool
    """Whether it multiplies by a weight, and not by other activations."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a choice, or of a whole model."""

    size: float = 0.0
    """Bytes of weights, without scales and zero points."""
    bitops: float = 0.0
    """Bit operations: multiply-accumulates times the bits of the weight times those of the activation."""
    latency: float = 0.0
    """Seconds, as measured; 0 where nothing was."""
    activations: float = 0.0
    """Bytes of the values that units give."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in RESOURCES))

    def of(self, resource: str) -> float:
        """Return the cost in one resource."""
        value: float = getattr(self, resource)
        return value


RESOURCES = ("size", "bitops", "latency", "activations")
"""What a budget may limit, in the order of the fields of ``Cost``."""


def nominal_cost(work: UnitWork, choice: Choice) -> Cost:
    """Return what a choice costs where every value takes as many bits as it has."""
    weight = choice.weight_bits if work.has_weight else choice.activation_bits
    return Cost(
        size=work.weights * choice.weight_bits / 8,
        bitops=float(work.macs * weight * choice.activation_bits),
        activations=work.values * choice.activation_bits / 8,
    )


def packed_cost(work: UnitWork, choice: Choice) -> Cost:
    """Return what a choice costs where weights take 2, 4, 8 or 16 bits each, and activations whole bytes."""
    nominal = nominal_cost(work, choice)
    width = next((width for width in (2, 4, 8, 16) if choice.weight_bits <= width), FLOAT_BITS)
    return Cost(
        size=work.weights * width / 8,
        bitops=nominal.bitops,
        activations=float(work.values * -(-choice.activation_bits // 8)),
    )
