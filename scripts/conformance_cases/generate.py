"""The cases: inputs by hand, and why each is there; what is expected comes from ``conformance_cases.exact``.

``python -m scripts.conformance_cases.generate`` writes ``cases/*.json`` again; a test holds that they are what this
gives.

Every scale is a power of two, so that float32 holds all that is computed without rounding: dividing by a scale and
multiplying by its inverse, one order of additions and another, all come to the same. What is left is what a tool
decides: how it rounds, where it clamps, what it takes for padding.
"""

from __future__ import annotations

from scripts.conformance_cases.conversions import dequantize_cases, fake_quantize_cases, qparams_cases, quantize_cases
from scripts.conformance_cases.exact import Row, write
from scripts.conformance_cases.operators import (
    add_cases,
    conv_cases,
    linear_cases,
    matmul_cases,
    pool_cases,
    transposed_cases,
)

FILES = {
    "quantize": quantize_cases,
    "dequantize": dequantize_cases,
    "fake_quantize": fake_quantize_cases,
    "linear": linear_cases,
    "conv2d": conv_cases,
    "conv_transpose2d": transposed_cases,
    "pool": pool_cases,
    "matmul": matmul_cases,
    "qparams": qparams_cases,
    "two_tensors": add_cases,
}
"""Name of a file -> what is in it."""


def rows() -> dict[str, list[Row]]:
    """All cases, by file."""
    return {name: list(make()) for name, make in FILES.items()}


if __name__ == "__main__":
    write(rows())
