"""Cases of layers and other operators on quantized values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from scripts.conformance_cases.exact import (
    HALF,
    JACOB,
    Array,
    Number,
    Row,
    averaged,
    case,
    convolved,
    filled,
    finished,
    maximum,
    multiplied,
    pattern,
    real,
    transposed,
)


def layer_case(
    name: str, why: str, *, x: Array, weight: Array, operator: str = "conv2d", x_qparams: Any = (HALF, 128),
    w_scale: Sequence[Fraction] | None = None, bias: Sequence[Number] | None = None,
    y_qparams: Any = (Fraction(64), 128),
    x_dtype: str = "uint8", y_dtype: str = "uint8", activation: Any = (None, None), **geometry: Any,
) -> Row:  # fmt: skip
    """A layer: its products and sums in fractions, then one rounding."""
    first = weight.shape[1] * geometry.get("groups", 1) if operator == "conv_transpose2d" else weight.shape[0]
    scales = list(w_scale or [Fraction(1)] * first)
    spread = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, **geometry}
    all_qparams = [(scale, 0) for scale in scales]
    biases = list(bias or [0] * first)
    x_real = real(x, x_qparams)
    if operator == "conv_transpose2d":
        spread = {"output_padding": [0, 0], **spread}
        depth = weight.shape[1]
        w_real = Array(weight.shape, [v * scales[0] for v in weight.data])
        assert len(set(scales)) == 1, depth
        y = transposed(x_real, w_real, biases, spread)
    else:
        inner = len(weight.data) // len(all_qparams)
        w_real = Array(weight.shape, [value * scales[index // inner] for index, value in enumerate(weight.data)])
        if operator == "linear":
            x4, w4 = Array((*x.shape, 1, 1), x_real.data), Array((*weight.shape, 1, 1), w_real.data)
            y = convolved(x4, w4, biases, spread)
            y, spread = Array(y.shape[:2], y.data), {}
        else:
            y = convolved(x_real, w_real, biases, spread)
    return case(
        name, operator, why, JACOB, inputs={"x": x, "weight": weight},
        attributes={
            "x_dtype": x_dtype, "x_scale": x_qparams[0], "x_zero_point": x_qparams[1],
            "weight_scale": scales, "bias": biases,
            "y_dtype": y_dtype, "y_scale": y_qparams[0], "y_zero_point": y_qparams[1],
            "activation": activation, **spread,
        },
        expected=finished(y, y_qparams, y_dtype, activation),
    )  # fmt: skip


def linear_cases() -> Iterator[Row]:
    """Products and sums, and how these are stored."""
    quarter = Fraction(1, 4)
    wide = "pairs of products exceed 16 bits: vpmaddubsw saturates them (pytorch#44939)"
    x, weight = filled([1, 64], 255), filled([2, 64], 127)
    big = (Fraction(2**14), 0)
    one = (Fraction(1), 0)
    yield layer_case("saturation of u8 x s8", wide, operator="linear", x=x, weight=weight, x_qparams=one, y_qparams=big)
    low = filled([2, 64], -128)
    yield layer_case(
        "saturation of u8 x s8, below 0",
        wide,
        operator="linear",
        x=x,
        weight=low,
        x_qparams=one,
        y_qparams=(Fraction(2**13), 255),
    )
    x, weight = filled([1, 4096], 255), filled([1, 4096], 127)
    yield layer_case(
        "a sum of 27 bits", "sums are 32 bits wide", operator="linear", x=x, weight=weight, x_qparams=one,
        y_qparams=(Fraction(2**20), 0),
    )  # fmt: skip
    sums = Array([9, 1], [128 + n for n in range(-4, 5)])
    two = Array([1, 1], [2])
    qparams: dict[str, Any] = {"x_qparams": (quarter, 128), "operator": "linear"}
    yield layer_case(
        "requantizing ties",
        "r / s_y = n + 1/2 rounds to even",
        x=sums,
        weight=two,
        y_qparams=(Fraction(1), 5),
        **qparams,
    )
    yield layer_case(
        "requantizing ties, signed result", "the same below 0", x=sums, weight=two, y_qparams=(Fraction(1), -5),
        y_dtype="int8", **qparams,
    )  # fmt: skip
    x, weight = pattern([3, 8], 0, 255), pattern([4, 8], -128, 127, 91)
    scales = [Fraction(1, 2**n) for n in range(4)]
    yield layer_case(
        "a scale for each output", "weights per output channel", operator="linear", x=x, weight=weight, w_scale=scales,
        y_qparams=(Fraction(32), 100),
    )  # fmt: skip
    bias = [Fraction(n, 2) for n in (1, -3, 100, -2000)]
    yield layer_case(
        "bias", "added before the result is rounded, once", operator="linear", x=x, weight=weight, bias=bias,
        y_qparams=(Fraction(16), 120),
    )  # fmt: skip
    for zero_point in (0, 10, 255):
        yield layer_case(
            f"ReLU, zero point {zero_point}", "clamps at the zero point, not at 0", operator="linear", x=x,
            weight=weight, y_qparams=(Fraction(64), zero_point), activation=(0, None),
        )  # fmt: skip
    yield layer_case(
        "ReLU6", "the upper bound is the float value 6", operator="linear", x=x, weight=weight,
        y_qparams=(Fraction(1, 16), 20), w_scale=[Fraction(1, 2**10)] * 4, activation=(0, 6),
    )  # fmt: skip
    for zero_point in (0, 255):
        yield layer_case(
            f"zero point {zero_point} of the input", "sum(w) times the zero point is taken out", operator="linear",
            x=x, weight=weight, x_qparams=(HALF, zero_point), y_qparams=(Fraction(256), 128),
        )  # fmt: skip
    signed = pattern([3, 8], -128, 127)
    yield layer_case(
        "a signed input", "s8 x s8", operator="linear", x=signed, weight=weight, x_dtype="int8", x_qparams=(HALF, -7),
        y_qparams=(Fraction(64), -3), y_dtype="int8",
    )  # fmt: skip


def conv_cases() -> Iterator[Row]:
    """Convolutions: padding, groups, windows."""
    x, weight = pattern([1, 4, 5, 5], 0, 255), pattern([4, 4, 3, 3], -128, 127, 91)
    padded = "padding is the float value 0, which is the zero point"
    for zero_point in (0, 1, 128, 255):
        yield layer_case(
            f"padding with zero point {zero_point}", padded, x=x, weight=weight, x_qparams=(HALF, zero_point),
            y_qparams=(Fraction(256), 128), padding=[1, 1],
        )  # fmt: skip
    yield layer_case(
        "padding of an input that is 0", padded, x=filled([1, 1, 3, 3], 77), weight=filled([1, 1, 3, 3], 1),
        x_qparams=(HALF, 77), y_qparams=(Fraction(1), 3), padding=[1, 1],
    )  # fmt: skip
    thin = Array([4, 1, 3, 3], weight.data[:36])
    yield layer_case("depthwise", "a group for each channel", x=x, weight=thin, groups=4, padding=[1, 1])
    half = Array([4, 2, 3, 3], weight.data[:72])
    yield layer_case("two groups", "outputs see the inputs of their group", x=x, weight=half, groups=2)
    yield layer_case(
        "stride 2", "windows two apart", x=x, weight=weight, stride=[2, 2], padding=[1, 1], y_qparams=(Fraction(256), 9)
    )
    yield layer_case(
        "dilation 2",
        "taps two apart",
        x=x,
        weight=weight,
        dilation=[2, 2],
        padding=[2, 2],
        y_qparams=(Fraction(256), 9),
    )
    uneven: dict[str, Any] = {"stride": [2, 1], "padding": [0, 2], "y_qparams": (Fraction(256), 200)}
    yield layer_case("rows and columns differ", "stride and padding of each dimension", x=x, weight=weight, **uneven)
    dots = Array([8, 4, 1, 1], weight.data[:32])
    yield layer_case("pointwise", "a window of one", x=x, weight=dots, y_qparams=(Fraction(32), 128))
    full: dict[str, Any] = {"x_qparams": (Fraction(1), 0), "y_qparams": (Fraction(2**13), 0)}
    wide = "pairs of products exceed 16 bits: vpmaddubsw saturates them (pytorch#44939)"
    yield layer_case(
        "saturation of u8 x s8", wide, x=filled([1, 16, 3, 3], 255), weight=filled([2, 16, 1, 1], 127), **full
    )
    yield layer_case(
        "ReLU with padding", "clamps at the zero point of the result", x=x, weight=weight, padding=[1, 1],
        y_qparams=(Fraction(256), 17), activation=(0, None),
    )  # fmt: skip


def transposed_cases() -> Iterator[Row]:
    """Transposed convolutions: weight [C_in, C_out / groups, ...]."""
    x = pattern([1, 4, 3, 3], 0, 255)
    qparams: dict[str, Any] = {"operator": "conv_transpose2d", "y_qparams": (Fraction(256), 128)}
    square, thin = pattern([4, 3, 2, 2], -128, 127, 91), pattern([4, 1, 3, 3], -128, 127, 91)
    yield layer_case("stride 2", "each input adds to a window of outputs", x=x, weight=square, stride=[2, 2], **qparams)
    pairs = "outputs of a group are counted within it, inputs over all"
    yield layer_case("two groups", pairs, x=x, weight=pattern([4, 3, 2, 2], -100, 100, 53), groups=2, **qparams)
    yield layer_case("depthwise, stride 2", pairs, x=x, weight=thin, groups=4, stride=[2, 2], padding=[1, 1], **qparams)
    yield layer_case(
        "output padding", "rows at the end alone get more", x=x, weight=thin, stride=[2, 2], padding=[1, 1],
        output_padding=[1, 1], **qparams,
    )  # fmt: skip
    yield layer_case(
        "zero point 0", "places that no input reaches are the float value 0", x=x, weight=square, stride=[3, 3],
        x_qparams=(HALF, 0), operator="conv_transpose2d", y_qparams=(Fraction(256), 60),
    )  # fmt: skip


def pool_cases() -> Iterator[Row]:
    """Averages and maxima."""
    x = Array([1, 1, 4, 4], [n if n % 3 else 255 - n for n in range(16)])
    ties = Array([1, 1, 2, 8], [1, 0, 1, 1, 1, 2, 5, 6, 1, 0, 0, 1, 0, 0, 6, 5])
    same = (Fraction(1), 0)
    base = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "count_include_pad": True}
    padded = {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]}
    rows: Sequence[tuple[str, str, Array, Any, Any, dict[str, Any]]] = (
        ("ties", "the sum is exact and is rounded once, half to even", ties, same, same, base),
        ("ties, zero point 3", "rounding comes before the zero point", ties, (Fraction(1), 3), (Fraction(1), 3), base),
        ("other qparams", "the mean is rounded to the result's qparams alone", x, (HALF, 128), (Fraction(2), 7), base),
        ("padding counts", "padding is 0, so it adds the zero point", x, (HALF, 128), (HALF, 128), {**base, **padded}),
        (
            "padding does not count", "means of what is inside", x, (HALF, 128), (Fraction(1, 4), 128),
            {**base, **padded, "count_include_pad": False, "kernel_size": [2, 2]},
        ),
    )  # fmt: skip
    for name, why, values, x_qparams, y_qparams, attributes in rows:
        y = finished(averaged(real(values, x_qparams), attributes), y_qparams, "uint8", (None, None))
        all_qparams = dict(
            zip(("x_scale", "x_zero_point", "y_scale", "y_zero_point"), (*x_qparams, *y_qparams), strict=True)
        )
        rest = {"x_dtype": "uint8", "y_dtype": "uint8", **all_qparams, **attributes}
        yield case(name, "avg_pool2d", why, JACOB, inputs={"x": values}, attributes=rest, expected=y)
    for zero_point in (0, 200):
        attributes = {**padded, "x_dtype": "uint8", "x_scale": HALF, "x_zero_point": zero_point}
        yield case(
            f"padding, zero point {zero_point}", "max_pool2d", "padding is never the largest: it is not there", JACOB,
            inputs={"x": x}, attributes=attributes, expected=maximum(x, attributes),
        )  # fmt: skip


def add_cases() -> Iterator[Row]:
    """Sums, products and joins of two tensors, each with its own qparams."""
    a, b = Array([16], [n * 17 for n in range(16)]), Array([16], [(n * 53) % 256 for n in range(16)])
    fine, coarse = (HALF, 128), (Fraction(2), 100)
    operators: Sequence[tuple[str, str, Any, Any, Any, Any, Any]] = (
        ("add", "other qparams for the sum", fine, coarse, (Fraction(2), 120), (None, None), lambda p, q: p + q),
        ("add", "ties", (HALF, 128), (HALF, 128), (Fraction(1), 128), (None, None), lambda p, q: p + q),
        ("add", "saturation", coarse, coarse, (HALF, 128), (None, None), lambda p, q: p + q),
        ("add", "ReLU, zero point 9", fine, coarse, (Fraction(2), 9), (0, None), lambda p, q: p + q),
        (
            "mul",
            "other qparams for the product",
            fine,
            coarse,
            (Fraction(64), 120),
            (None, None),
            lambda p, q: p * q,
        ),
        ("mul", "ties", (HALF, 128), (Fraction(1), 127), (Fraction(64), 100), (None, None), lambda p, q: p * q),
    )
    for operator, name, a_qparams, b_qparams, y_qparams, activation, function in operators:
        pairs = zip(real(a, a_qparams).data, real(b, b_qparams).data, strict=True)
        y = finished(Array([16], [function(p, q) for p, q in pairs]), y_qparams, "uint8", activation)
        keys = ("a_scale", "a_zero_point", "b_scale", "b_zero_point", "y_scale", "y_zero_point")
        attributes = {**dict(zip(keys, (*a_qparams, *b_qparams, *y_qparams), strict=True)), "activation": activation}
        why = "float values are added or multiplied, and rounded once"
        yield case(name, operator, why, JACOB, inputs={"a": a, "b": b}, attributes=attributes, expected=y)
    y_qparams = (Fraction(1), 128)
    joined = Array([32], [*real(a, fine).data, *real(b, coarse).data])
    attributes = dict(
        zip(
            ("a_scale", "a_zero_point", "b_scale", "b_zero_point", "y_scale", "y_zero_point"),
            (*fine, *coarse, *y_qparams),
            strict=True,
        )
    )
    yield case(
        "other qparams for the result", "cat", "each input is requantized to the qparams of the result", JACOB,
        inputs={"a": a, "b": b}, attributes=attributes, expected=finished(joined, y_qparams, "uint8", (None, None)),
    )  # fmt: skip


def matmul_cases() -> Iterator[Row]:
    """Products of two activations."""
    a, b = pattern([2, 3, 8], 0, 255), pattern([2, 8, 4], 0, 255, 91)
    full, one = (filled([1, 1, 64], 255), filled([1, 64, 2], 255)), (Fraction(1), 0)
    keys = ("a_scale", "a_zero_point", "b_scale", "b_zero_point", "y_scale", "y_zero_point")
    rows: Sequence[tuple[str, str, Array, Array, Any, Any, Any]] = (
        ("two zero points", "both are taken out of the sum", a, b, (HALF, 128), (HALF, 100), (Fraction(256), 128)),
        ("zero points 0 and 255", "the widest differences", a, b, (HALF, 0), (HALF, 255), (Fraction(512), 200)),
        ("saturation of u8 x u8", "pairs of products exceed 16 bits", *full, one, one, (Fraction(2**15), 0)),
    )  # fmt: skip
    for name, why, left, right, *all_qparams in rows:
        y = multiplied(real(left, all_qparams[0]), real(right, all_qparams[1]))
        attributes = dict(zip(keys, (number for qparams in all_qparams for number in qparams), strict=True))
        stored = finished(y, all_qparams[2], "uint8", (None, None))
        yield case(name, "matmul", why, JACOB, inputs={"a": left, "b": right}, attributes=attributes, expected=stored)
