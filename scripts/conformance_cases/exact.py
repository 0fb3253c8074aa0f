"""Quantized operators in exact arithmetic, on fractions: what the cases expect, without torch and without fxquant."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[2] / "fxquant" / "conformance" / "cases"

LIMITS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "int2": (-2, 1),
    "int16": (-(2**15), 2**15 - 1),
}
"""Smallest and largest integer of each kind."""

ONNX = "ONNX QuantizeLinear: rounds half to even, saturates"
JACOB = "Jacob et al., arXiv:1712.05877, eq. 1"
HERE = "no standard says: what counts is that the answer is defined, and the same on every path"

HALF = Fraction(1, 2)
Number = int | Fraction
Row = dict[str, Any]
"""A case as it is written."""
AffineQParams = tuple[Fraction, int]
"""Scale and zero point."""


def quantized(x: Number | float, scale: Fraction, zero_point: int, limits: tuple[int, int]) -> int:
    """``clamp(round(x / scale) + zero_point)``, to nearest, ties to even; NaN is the smallest integer."""
    low, high = limits
    if isinstance(x, float) and not math.isfinite(x):
        return high if x > 0 else low
    return min(max(round(Fraction(x) / scale) + zero_point, low), high)


class Array:
    """Numbers in a shape; what NumPy would be, if it could hold fractions."""

    def __init__(self, shape: Sequence[int], data: Iterable[Any]) -> None:
        self.shape, self.data = tuple(shape), list(data)
        assert len(self.data) == math.prod(self.shape), (self.shape, len(self.data))

    def at(self, *index: int) -> Any:
        """The number at an index."""
        position = 0
        for size, at in zip(self.shape, index, strict=True):
            position = position * size + at
        return self.data[position]

    def map(self, function: Callable[[Any], Any]) -> Array:
        """The same shape with other numbers."""
        return Array(self.shape, map(function, self.data))

    def indices(self) -> Iterator[tuple[int, ...]]:
        """All of them, the last dimension first."""
        return product(*map(range, self.shape))


def pattern(shape: Sequence[int], low: int, high: int, step: int = 37) -> Array:
    """Integers from ``low`` to ``high`` in no order that matters, always the same ones."""
    span = high - low + 1
    return Array(shape, [low + (step * index + index // 7) % span for index in range(math.prod(shape))])


def filled(shape: Sequence[int], value: int) -> Array:
    """One integer everywhere."""
    return Array(shape, [value] * math.prod(shape))


def real(q: Array, qparams: AffineQParams) -> Array:
    """Return the exact values that quantized values stand for."""
    scale, zero_point = qparams
    return q.map(lambda value: (value - zero_point) * scale)


def finished(y: Array, qparams: AffineQParams, dtype: str, activation: tuple[Number | None, Number | None]) -> Array:
    """Clamp exact values as an activation does, and quantize them."""
    low, high = activation

    def store(value: Number) -> int:
        value = value if low is None else max(value, low)
        value = value if high is None else min(value, high)
        return quantized(value, *qparams, LIMITS[dtype])

    return y.map(store)


def convolved(x: Array, weight: Array, bias: Sequence[Number], attributes: Mapping[str, Any]) -> Array:
    """A two-dimensional convolution of exact values, padding with 0."""
    stride, padding = attributes["stride"], attributes["padding"]
    dilation, groups = attributes["dilation"], attributes["groups"]
    images, _, *sizes = x.shape
    outputs, depth, *kernel = weight.shape
    geometry = list(zip(sizes, kernel, stride, padding, dilation, strict=True))
    spatial = [(size + 2 * pad - dil * (taps - 1) - 1) // step + 1 for size, taps, step, pad, dil in geometry]
    y = Array((images, outputs, *spatial), [0] * (images * outputs * math.prod(spatial)))
    sums = []
    for image, out, *place in y.indices():
        first = out // (outputs // groups) * depth
        total = Fraction(bias[out])
        for channel, *tap in product(range(depth), *map(range, kernel)):
            at = [p * step + t * dil - pad for p, t, (_, _, step, pad, dil) in zip(place, tap, geometry, strict=True)]
            if all(0 <= position < size for position, size in zip(at, sizes, strict=True)):
                total += x.at(image, first + channel, *at) * weight.at(out, channel, *tap)
        sums.append(total)
    return Array(y.shape, sums)


def transposed(x: Array, weight: Array, bias: Sequence[Number], attributes: Mapping[str, Any]) -> Array:
    """A two-dimensional transposed convolution of exact values: each input adds to a window of outputs."""
    stride, padding, more = attributes["stride"], attributes["padding"], attributes["output_padding"]
    groups = attributes["groups"]
    images, inputs, *sizes = x.shape
    _, depth, *kernel = weight.shape
    along = zip(sizes, kernel, stride, padding, more, strict=True)
    spatial = [(size - 1) * step - 2 * pad + taps + extra for size, taps, step, pad, extra in along]
    sums = {
        index: Fraction(bias[index[1]]) for index in product(range(images), range(depth * groups), *map(range, spatial))
    }
    for image, channel, *place in x.indices():
        group = channel // (inputs // groups)
        for out, *tap in product(range(depth), *map(range, kernel)):
            at = tuple(p * s + t - pad for p, t, s, pad in zip(place, tap, stride, padding, strict=True))
            key = (image, group * depth + out, *at)
            if key in sums:
                sums[key] += x.at(image, channel, *place) * weight.at(channel, out, *tap)
    return Array((images, depth * groups, *spatial), sums.values())


def multiplied(a: Array, b: Array) -> Array:
    """Products of matrices of exact values, [N, M, K] and [N, K, L]."""
    (count, rows, inner), columns = a.shape, b.shape[2]
    sums = [
        sum(a.at(n, row, k) * b.at(n, k, column) for k in range(inner))
        for n, row, column in product(range(count), range(rows), range(columns))
    ]
    return Array((count, rows, columns), sums)


def averaged(x: Array, attributes: Mapping[str, Any]) -> Array:
    """The mean of each window of exact values."""
    kernel, stride, padding = attributes["kernel_size"], attributes["stride"], attributes["padding"]
    *outer, rows, columns = x.shape
    sizes = (rows, columns)
    spatial = [
        (size + 2 * pad - taps) // step + 1
        for size, taps, step, pad in zip(sizes, kernel, stride, padding, strict=True)
    ]
    means = []
    for *lead, row, column in product(*map(range, (*outer, *spatial))):
        places = [
            (row * stride[0] + i - padding[0], column * stride[1] + j - padding[1])
            for i, j in product(*map(range, kernel))
        ]
        inside = [x.at(*lead, *at) for at in places if all(0 <= p < size for p, size in zip(at, sizes, strict=True))]
        count = len(places) if attributes["count_include_pad"] else len(inside)
        means.append(Fraction(sum(inside)) / count)
    return Array((*outer, *spatial), means)


def maximum(x: Array, attributes: Mapping[str, Any]) -> Array:
    """The largest integer of each window; padding is never it."""
    kernel, stride, padding = attributes["kernel_size"], attributes["stride"], attributes["padding"]
    *outer, rows, columns = x.shape
    geometry = list(zip((rows, columns), kernel, stride, padding, strict=True))
    spatial = [(size + 2 * pad - taps) // step + 1 for size, taps, step, pad in geometry]
    found = []
    for *lead, row, column in product(*map(range, (*outer, *spatial))):
        places = [
            (row * stride[0] + i - padding[0], column * stride[1] + j - padding[1])
            for i, j in product(*map(range, kernel))
        ]
        inside = [x.at(*lead, *at) for at in places if 0 <= at[0] < rows and 0 <= at[1] < columns]
        found.append(max(inside))
    return Array((*outer, *spatial), found)


def spelled(value: Any) -> Any:
    """Spell a value for JSON: a fraction as the float that it is, arrays with shapes, many equal numbers as one."""
    if isinstance(value, Array):
        same = len(value.data) > 16 and len({*value.data}) == 1
        return {"shape": value.shape, **({"fill": value.data[0]} if same else {"data": spelled(value.data)})}
    if isinstance(value, Fraction):
        assert Fraction(float(value)) == value, value
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: spelled(inner) for name, inner in value.items()}
    return [spelled(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def case(name: str, operator: str, why: str, source: str, **rest: Any) -> dict[str, Any]:
    """One row of a file."""
    return {
        "name": name,
        "operator": operator,
        "why": why,
        "source": source,
        **{k: spelled(v) for k, v in rest.items()},
    }


def write(files: Mapping[str, Sequence[dict[str, Any]]], folder: Path = CASES) -> None:
    """One file for each operator, a line for each case."""
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        lines = ",\n".join(json.dumps(row, separators=(", ", ": ")) for row in rows)
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
