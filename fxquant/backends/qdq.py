"""Rows and conditions that the tables of runtimes share which read ONNX graphs of quantize and dequantize nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fxquant.backends.base import SIGNED_WEIGHTS, Accepts, AsCalled, Lower, LoweringRule, anything
from fxquant.backends.reference import no_operator
from fxquant.patterns.elementwise import ELEMENTWISE
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.pool import EXTREMA, MAXIMA
from fxquant.patterns.shape import DATA_MOVEMENT, NEAREST, NOTHING, ZERO_PADS
from fxquant.patterns.unary import RESCALE
from fxquant.plan.spec import QScheme

BYTE = 8
WORD = 16

SMALLEST_BLOCK = 16
"""Values in the smallest block that may have a scale of its own in kernels for blocked weights."""

JOINS = tuple(pattern for pattern in ELEMENTWISE if pattern.name in ("cat", "stack"))
"""Patterns of what joins values on one set of qparams."""
AVERAGE_POOLS = ("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d")
MEANS = (*AVERAGE_POOLS, "mean")


def names_of(patterns: Iterable[Pattern]) -> tuple[str, ...]:
    return tuple(pattern.name for pattern in patterns)


def per_tensor(scheme: QScheme) -> str | None:
    """Activations have one integer scale and zero point for the whole tensor."""
    if scheme.axis is not None or scheme.float_qparams:
        return f"activations need one integer zero point for the whole tensor, not {scheme}"
    return None


def affine_of(bits: int) -> Accepts:
    """Per tensor activations of at most ``bits`` bits."""

    def accepts(scheme: QScheme) -> str | None:
        too_wide = f"{scheme.bits} bit activations have no form there" if scheme.bits > bits else None
        return too_wide or per_tensor(scheme)

    return accepts


def zero_point_zero(scheme: QScheme) -> str | None:
    """Tell why activations are not int8 with zero point 0."""
    if scheme.signed and scheme.symmetric:
        return affine_of(BYTE)(scheme)
    return f"its integers must be int8 with zero point 0 (dtype=torch.int8, qscheme=per_tensor_symmetric), not {scheme}"


def affine_if_unsigned(scheme: QScheme) -> str | None:
    """Accept uint8 with any zero point, and int8 with zero point 0."""
    return zero_point_zero(scheme) if scheme.signed else affine_of(BYTE)(scheme)


def ends_at_clamp(accepts: Accepts) -> Accepts:
    """Where a clamp is part of a unit, the first and the last integer must stand for its bounds.

    Qparams that are symmetric reach below a ReLU, whatever they are observed on.
    """

    def checked(scheme: QScheme) -> str | None:
        if scheme.symmetric:
            return f"the clamp behind it is fused only where the quantization range ends at its bounds, not in {scheme}"
        return accepts(scheme)

    return checked


def symmetric_weight(scheme: QScheme) -> str | None:
    """Weights are int8 and symmetric, per tensor or per output channel."""
    if scheme.bits > BYTE:
        return f"{scheme.bits} bit weights do not fit a byte"
    if not scheme.signed or not scheme.symmetric:
        return f"{SIGNED_WEIGHTS} (dtype=torch.int8, qscheme=per_channel_symmetric), not {scheme}"
    if scheme.group_size is not None:
        return "weights with one scale per group are multiplied in float; leave activations in float for them"
    return None


def blocked_weight(scheme: QScheme) -> str | None:
    """Weights beside float activations: any integers of at most 8 bits, in blocks of 16, 32, 64 and so on."""
    if scheme.bits > BYTE:
        return f"{scheme.bits} bit weights do not fit a byte"
    if scheme.float_qparams:
        return f"weights need an integer zero point, not {scheme}"
    size = scheme.group_size
    if size is not None and (size < SMALLEST_BLOCK or size & (size - 1)):
        return f"group_size={size}: blocks hold 16, 32, 64 and so on values"
    return None


def table_of_bytes(scheme: QScheme) -> str | None:
    """Tables of embeddings are stored in bytes, each row with a scale of its own."""
    if scheme.bits > BYTE:
        return f"{scheme.bits} bit tables do not fit bytes"
    return None if scheme.group_size is None else "tables with one scale per group have no form there"


def integer_rule(
    patterns: Iterable[Pattern], activation: Accepts, weight: Accepts = anything, *, float_result: bool = False
) -> LoweringRule:
    """Return a row for units that compute; nothing is built of them here, since the runtime does."""
    return LoweringRule(names_of(patterns), no_operator, activation, weight, float_result=float_result)


def split_by_clamp(rule: LoweringRule) -> tuple[LoweringRule, LoweringRule]:
    """Return two rows for one: for patterns with a clamp, which only some qparams imply, and for those without."""
    clamped = tuple(name for name in rule.patterns if name.endswith("_act"))
    others = tuple(name for name in rule.patterns if name not in clamped)
    return replace(rule, patterns=clamped, activation=ends_at_clamp(rule.activation)), replace(rule, patterns=others)


def data_movement(activation: Accepts) -> tuple[LoweringRule, ...]:
    """Rows for what only moves values: it runs on integers as it does on floats."""
    moved = names_of((*EXTREMA, *MAXIMA, *DATA_MOVEMENT, *NEAREST, *ZERO_PADS))
    return (
        LoweringRule((*moved, "max_pool2d"), Lower.KEEP, activation),
        LoweringRule(names_of(NOTHING + RESCALE), Lower.ELIDE, activation),
    )


def on_floats(patterns: tuple[str, ...], activation: Accepts = anything, weight: Accepts = anything) -> LoweringRule:
    """Return a row for what is called with floats."""
    return LoweringRule(patterns, AsCalled(no_operator), activation, weight)
