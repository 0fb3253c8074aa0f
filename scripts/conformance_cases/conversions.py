"""Cases of single numbers: float values to quantized ones and back, and ranges to qparams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from scripts.conformance_cases.exact import HALF, HERE, JACOB, LIMITS, ONNX, Array, Number, Row, case, quantized, real

TINY = Fraction(1, 2**149)
"""The smallest float32 above 0."""


def quantize_cases() -> Iterator[Row]:
    """Float values to quantized values."""
    ties = [Fraction(2 * n + 1, 2) for n in range(-6, 7)]
    numbers: Sequence[tuple[str, str, int, Fraction, Sequence[Number | float], str, str]] = (
        ("ties to even", "uint8", 0, Fraction(1), ties, "half rounds to even, not away from 0", ONNX),
        ("ties, signed", "int8", 0, Fraction(1), ties, "half rounds to even on both sides of 0", ONNX),
        ("ties, odd zero point", "uint8", 7, Fraction(1), ties, "rounding comes before the zero point is added", ONNX),
        ("ties, scale 1/8", "int8", -3, Fraction(1, 8), [t / 8 for t in ties], "a power of two changes no tie", ONNX),
        (
            "just beside ties", "int8", 0, Fraction(1),
            [sign * (n + HALF + Fraction(side, 2**20)) for n in range(4) for sign in (-1, 1) for side in (-1, 1)],
            "the nearest integer, however near the tie", ONNX,
        ),
        ("saturation", "uint8", 128, Fraction(1), [-129, -128, 127, 128, 1000, -1000], "clamps, never wraps", ONNX),
        ("saturation, signed", "int8", 0, Fraction(1), [-129, -128, 127, 128, 300, -300], "clamps, never wraps", ONNX),
        (
            "beyond int32", "uint8", 10, Fraction(1, 64), [2**33, -(2**33), 2**70, -(2**70), 2**31, -(2**31)],
            "clamped before the cast to an integer, which would wrap", ONNX,
        ),
        ("infinities", "uint8", 3, HALF, [math.inf, -math.inf], "infinity saturates", ONNX),
        ("infinities, signed", "int8", 3, HALF, [math.inf, -math.inf], "infinity saturates", ONNX),
        ("NaN", "uint8", 3, HALF, [math.nan, 1, math.nan], "NaN becomes the smallest integer, and no other does", HERE),
        ("NaN, signed", "int8", 3, HALF, [math.nan, 1, math.nan], "NaN becomes the smallest integer", HERE),
        ("zero point 0", "uint8", 0, Fraction(1), [-1, -HALF, 0, HALF, 1, 255, 256], "nothing below 0 is left", ONNX),
        ("zero point 255", "uint8", 255, Fraction(1), [-256, -255, -1, 0, HALF, 1], "nothing above 0 is left", ONNX),
        ("zero point -128", "int8", -128, Fraction(1), [-1, 0, 1, 254, 255, 256], "all of it lies above 0", ONNX),
        ("zero point 127", "int8", 127, Fraction(1), [-256, -255, -254, -1, 0, 1], "all of it lies below 0", ONNX),
        ("the smallest float", "uint8", 5, Fraction(1), [TINY, -TINY, 0], "0 is the zero point", ONNX),
        ("int16", "int16", 0, Fraction(1), [-40000, -32768, 32767, 32768, 5 * HALF], "saturates at 16 bits", ONNX),
        ("levels of int4", "int4", 0, Fraction(1), list(range(-10, 10)), "16 levels, -8 to 7", ONNX),
        ("levels of uint4", "uint4", 8, Fraction(1), list(range(-10, 10)), "16 levels, 0 to 15", ONNX),
        ("levels of int2", "int2", 0, Fraction(1), list(range(-4, 4)), "4 levels, -2 to 1", ONNX),
    )  # fmt: skip
    for name, dtype, zero_point, scale, xs, why, source in numbers:
        x = Array([len(xs)], xs)
        attributes = {"dtype": dtype, "limits": LIMITS[dtype], "scale": [scale], "zero_point": [zero_point]}
        yield quantize_case(name, x, attributes, why, source)
    narrow = Array([6], [-200, -128, -127, 127, 128, 200])
    attributes = {"dtype": "int8", "limits": (-127, 127), "scale": [Fraction(1)], "zero_point": [0]}
    yield quantize_case("narrow range", narrow, attributes, "limits of the user's: -128 never occurs", JACOB)
    attributes = {"dtype": "uint8", "limits": (0, 127), "scale": [Fraction(1)], "zero_point": [64]}
    yield quantize_case("reduced range", narrow, attributes, "seven bits in a byte: nothing above 127", JACOB)
    x = Array([2, 3, 2], [Fraction(n, 4) for n in range(-6, 6)])
    for name, axis in (("first", 0), ("middle", 1), ("last", -1)):
        count = x.shape[axis]
        scales, zero_points = [Fraction(1, 2**n) for n in range(count)], list(range(3, 3 + count))
        limits = LIMITS["int8"]
        rest = {"dtype": "int8", "limits": limits, "scale": scales, "zero_point": zero_points, "axis": axis}
        yield quantize_case(f"channels, {name} dimension", x, rest, "a scale for each index of the axis", ONNX)


def quantize_case(name: str, x: Array, attributes: dict[str, Any], why: str, source: str) -> Row:
    """A row, with what is expected of it."""
    axis = attributes.get("axis")

    def store(index: tuple[int, ...], value: Number | float) -> int:
        channel = 0 if axis is None else index[axis]
        return quantized(value, attributes["scale"][channel], attributes["zero_point"][channel], attributes["limits"])

    y = Array(x.shape, [store(index, value) for index, value in zip(x.indices(), x.data, strict=True)])
    return case(name, "quantize", why, source, inputs={"x": x}, attributes=attributes, expected=y)


def dequantize_cases() -> Iterator[Row]:
    """Quantized values to float values."""
    rows: Sequence[tuple[str, str, list[int], int, Fraction]] = (
        ("edges of uint8", "uint8", [0, 1, 127, 128, 254, 255], 128, Fraction(1, 16)),
        ("edges of int8", "int8", [-128, -127, 0, 126, 127], -128, Fraction(1, 16)),
        ("zero point 255", "uint8", [0, 255], 255, Fraction(1)),
        ("the widest difference", "int8", [-128, 127], 127, Fraction(4)),
    )
    for name, dtype, q, zero_point, scale in rows:
        x = Array([len(q)], q)
        yield case(
            name, "dequantize", "(q - zero point) does not wrap at 8 bits", JACOB,
            inputs={"x": x}, attributes={"dtype": dtype, "scale": [scale], "zero_point": [zero_point]},
            expected=real(x, (scale, zero_point)),
        )  # fmt: skip


def fake_quantize_cases() -> Iterator[Row]:
    """Float values to quantized values and back."""
    ties = [Fraction(n, 4) for n in range(-10, 11)]
    rows: Sequence[tuple[str, list[Any], tuple[int, int], int, str]] = (
        ("ties", ties, (0, 255), 3, "the same integers as quantize gives"),
        ("four bits, clamped", ties, (-8, 7), 0, "clamped at both ends of 16 levels"),
        ("three levels", ties, (-1, 1), 0, "ternary"),
        ("infinities", [math.inf, -math.inf, 1], (0, 255), 128, "infinity becomes the last step, not NaN"),
        ("NaN", [math.nan, 1], (0, 255), 128, "NaN becomes the first step"),
    )
    for name, xs, limits, zero_point, why in rows:
        q = [quantized(x, HALF, zero_point, limits) for x in xs]
        yield case(
            name, "fake_quantize", why, HERE if name == "NaN" else JACOB, inputs={"x": Array([len(xs)], xs)},
            attributes={"limits": limits, "scale": [HALF], "zero_point": [zero_point]},
            expected=real(Array([len(xs)], q), (HALF, zero_point)),
        )  # fmt: skip


def qparams_cases() -> Iterator[Row]:
    """Observed ranges to scale and zero point."""
    unit = Fraction(1, 16)
    rows: Sequence[tuple[str, Number, Number, str, bool, Number, int, str]] = (
        ("from 0 up", 0, 255 * unit, "uint8", False, unit, 0, "the first step is 0"),
        ("up to 0", -255 * unit, 0, "uint8", False, unit, 255, "the last step is 0"),
        ("above 0", 100 * unit, 255 * unit, "uint8", False, unit, 0, "the range is widened to hold 0: padding is 0"),
        ("below 0", -255 * unit, -100 * unit, "uint8", False, unit, 255, "the range is widened to hold 0"),
        ("around 0", -100 * unit, 155 * unit, "uint8", False, unit, 100, "0 is a step"),
        ("0 between two steps", -5 * unit / 2, 505 * unit / 2, "uint8", False, unit, 2, "half to even"),
        ("around 0, signed", -100 * unit, 155 * unit, "int8", False, unit, -28, "the first step is -128"),
        ("symmetric", -unit, 255 * unit / 2, "int8", True, unit, 0, "zero point 0; 127.5 steps on a side (torch.ao)"),
        ("symmetric, unsigned", -255 * unit / 2, 0, "uint8", True, unit, 128, "zero point 128: the middle (torch.ao)"),
    )  # fmt: skip
    for name, low, high, dtype, symmetric, scale, zero_point, why in rows:
        yield case(
            name, "qparams", why, JACOB, inputs={"x": Array([2], [low, high])},
            attributes={"dtype": dtype, "limits": LIMITS[dtype], "symmetric": symmetric},
            expected=Array([2], [scale, zero_point]),
        )  # fmt: skip
