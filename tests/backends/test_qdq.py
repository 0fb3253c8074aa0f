"""Conditions on qparams that the tables of runtimes share."""

from __future__ import annotations

import pytest

import fxquant as fxq
from fxquant.backends import qdq

UINT8, INT8, SYMMETRIC = fxq.QScheme(signed=False), fxq.QScheme(), fxq.QScheme(symmetric=True)
UINT16 = fxq.QScheme(bits=16, signed=False)


@pytest.mark.parametrize(
    ("accepts", "scheme", "words"),
    [
        (qdq.affine_of(8), UINT8, None),
        (qdq.affine_of(8), INT8, None),
        (qdq.affine_of(8), UINT16, "16 bit activations have no form there"),
        (qdq.affine_of(16), UINT16, None),
        (qdq.affine_of(8), fxq.QScheme(axis=0), "one integer zero point for the whole tensor"),
        (qdq.zero_point_zero, SYMMETRIC, None),
        (qdq.zero_point_zero, UINT8, "must be int8 with zero point 0"),
        (qdq.zero_point_zero, INT8, "must be int8 with zero point 0"),
        (qdq.affine_if_unsigned, UINT8, None),
        (qdq.affine_if_unsigned, SYMMETRIC, None),
        (qdq.affine_if_unsigned, INT8, "must be int8 with zero point 0"),
        (qdq.affine_if_unsigned, UINT16, "16 bit"),
        (qdq.ends_at_clamp(qdq.affine_of(8)), UINT8, None),
        (qdq.ends_at_clamp(qdq.affine_of(8)), SYMMETRIC, "where the quantization range ends at its bounds"),
        (qdq.ends_at_clamp(qdq.affine_of(8)), UINT16, "16 bit"),
        (qdq.symmetric_weight, fxq.QScheme(symmetric=True, axis=0), None),
        (qdq.symmetric_weight, fxq.QScheme(bits=4, symmetric=True, axis=0), None),
        (qdq.symmetric_weight, fxq.QScheme(bits=9, symmetric=True), "9 bit weights"),
        (qdq.symmetric_weight, UINT8, "weights must be signed and symmetric"),
        (qdq.symmetric_weight, fxq.QScheme(symmetric=True, axis=0, group_size=32), "one scale per group"),
        (qdq.blocked_weight, fxq.QScheme(bits=4, signed=False, axis=0, group_size=32), None),
        (qdq.blocked_weight, fxq.QScheme(bits=4, symmetric=True, axis=0), None),
        (qdq.blocked_weight, fxq.QScheme(bits=4, symmetric=True, axis=0, group_size=24), "group_size=24"),
        (qdq.blocked_weight, fxq.QScheme(bits=4, symmetric=True, axis=0, group_size=8), "group_size=8"),
        (qdq.blocked_weight, fxq.QScheme(bits=16, axis=0), "16 bit weights"),
        (qdq.blocked_weight, fxq.QScheme(axis=0, float_qparams=True), "an integer zero point"),
        (qdq.table_of_bytes, fxq.QScheme(axis=0, float_qparams=True), None),
        (qdq.table_of_bytes, fxq.QScheme(axis=0, group_size=4), "one scale per group"),
    ],
)
def test_conditions(accepts, scheme, words):
    answer = accepts(scheme)
    assert answer is None if words is None else words in answer
