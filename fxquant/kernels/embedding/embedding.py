"""``fxquant::embedding``: rows of a quantized table as real numbers, without a table of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.kernels.embedding.lookup import check_indices, check_rows, check_table, real_rows
from fxquant.kernels.library import define

OP = "fxquant::embedding"


def embedding(weight: Tensor, scale: Tensor, zero_point: Tensor, indices: Tensor, bits: int, columns: int) -> Tensor:
    """Look rows up, and give the real numbers they stand for: ``(weight[i] - zero_point[i]) * scale[i]``.

    Only the rows that are asked for are dequantized. The difference and the product are float64, and rounded once.

    Args:
        weight: uint8 or int8 [rows, columns]; or, for 4 bits, [rows, ceil(columns / 2)], the even column of each two in
            the lower half of a byte (:func:`~fxquant.kernels.embedding.lookup.pack_halves`).
        scale: float32 [rows], real units per step; or [1] for one grid for all rows.
        zero_point: float32, of the same shape, in steps; no whole number need be.
        indices: int32 or int64, any shape; 0 to ``rows - 1``.
        bits: 4 or 8, of a stored value.
        columns: Values of a row.

    Returns:
        float32 [*indices.shape, columns], contiguous.

    Raises:
        RuntimeError: an argument is not as above; the message names it. Not for the values of indices that lie on a
            GPU: there a wrong one gives NaN.

    Source:
        ``torch.nn.functional.embedding``; the grid is that of torch's ``per_channel_affine_float_qparams``.
    """
    return torch.ops.fxquant.embedding.default(weight, scale, zero_point, indices, bits, columns)


def reference(weight: Tensor, scale: Tensor, zero_point: Tensor, indices: Tensor, bits: int, columns: int) -> Tensor:
    """The same in pure torch, on any device."""
    check_table(OP, weight, scale, zero_point, bits, columns)
    check_indices(OP, "indices", indices)
    check_rows(OP, indices, len(weight))
    rows = real_rows(weight, scale, zero_point, indices.reshape(-1).long(), bits, columns)
    return rows.reshape(*indices.shape, columns)


def _fake(weight: Tensor, scale: Tensor, zero_point: Tensor, indices: Tensor, bits: int, columns: int) -> Tensor:
    check_table(OP, weight, scale, zero_point, bits, columns)
    check_indices(OP, "indices", indices)
    return scale.new_empty([*indices.shape, columns])


define(
    "embedding(Tensor weight, Tensor scale, Tensor zero_point, Tensor indices, int bits, int columns) -> Tensor",
    reference=reference,
    fake=_fake,
)
