"""``fxquant::embedding_bag``: sums, means or maxima of rows of a quantized table."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.embedding.lookup import check_indices, check_rows, check_table, real_rows
from fxquant.kernels.library import define

OP = "fxquant::embedding_bag"

MODES = ("sum", "mean", "max")
"""The number of a mode is its place."""


def embedding_bag(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bits: int,
    columns: int,
    mode: int,
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:
    """Look rows up, and reduce those of each bag to one: as ``fxquant::embedding``, then in float32.

    Rows are added in the order of their indices, each weight is multiplied first, a mean is divided at the end; so
    every kernel rounds alike. A bag without rows gives 0.

    Args:
        weight, scale, zero_point, bits, columns: The table, as :func:`~fxquant.kernels.embedding.embedding.embedding`
            takes it.
        indices: int32 or int64 [n], 0 to ``rows - 1``.
        offsets: int32 or int64 [bags + 1], ascending from 0 to n: bag b holds the indices from ``offsets[b]`` to before
            ``offsets[b + 1]``.
        mode: 0 (sum), 1 (mean) or 2 (max).
        per_sample_weights: float32 [n], for sums only.
        padding_idx: An index that counts for nothing, not even for a mean.

    Returns:
        float32 [bags, columns], contiguous.

    Raises:
        RuntimeError: an argument is not as above; the message names it. Not for the values of indices and offsets that
            lie on a GPU: there a wrong index gives NaN, or, of maxima, may be passed over.

    Source:
        ``torch.nn.functional.embedding_bag``.
    """
    return torch.ops.fxquant.embedding_bag.default(
        weight, scale, zero_point, indices, offsets, bits, columns, mode, per_sample_weights, padding_idx
    )


def reference(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bits: int,
    columns: int,
    mode: int,
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:
    """The same in pure torch, on any device: the k-th rows of all bags at once."""
    y = _fake(weight, scale, zero_point, indices, offsets, bits, columns, mode, per_sample_weights, padding_idx)
    check_rows(OP, indices, len(weight))
    _check_borders(offsets, indices.numel())
    y = y.zero_()
    used = y.new_zeros(len(y))
    starts, ends = offsets[:-1].long(), offsets[1:].long()
    for k in range(int((ends - starts).max()) if len(y) else 0):
        bags = torch.nonzero(starts + k < ends).flatten()
        at = starts[bags] + k
        if padding_idx is not None:
            counts = indices[at].long() != padding_idx
            bags, at = bags[counts], at[counts]
        rows = real_rows(weight, scale, zero_point, indices[at].long(), bits, columns)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[at][:, None]
        if MODES[mode] == "max":
            y[bags] = torch.where((used[bags] == 0)[:, None] | (rows > y[bags]), rows, y[bags])
        else:
            y[bags] = y[bags] + rows
        used[bags] += 1
    return y / used.clamp(min=1)[:, None] if MODES[mode] == "mean" else y


def _fake(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bits: int,
    columns: int,
    mode: int,
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:
    check_table(OP, weight, scale, zero_point, bits, columns)
    if not 0 <= mode < len(MODES):
        raise KernelError(f"{OP}: mode is out of range", got=mode, expected="0 (sum), 1 (mean) or 2 (max)")
    check_indices(OP, "indices", indices)
    check_indices(OP, "offsets", offsets)
    if indices.dim() != 1:
        raise KernelError(f"{OP}: indices has the wrong shape", got=list(indices.shape), expected="one dimension")
    if offsets.dim() != 1 or offsets.numel() == 0:
        raise KernelError(f"{OP}: offsets has the wrong shape", got=list(offsets.shape), expected="[bags + 1]")
    if per_sample_weights is not None:
        _check_weights(per_sample_weights, indices, mode)
    return scale.new_empty([offsets.numel() - 1, columns])


def _check_weights(weights: Tensor, indices: Tensor, mode: int) -> None:
    if MODES[mode] != "sum":
        raise KernelError(f"{OP}: only sums take per_sample_weights", got=MODES[mode], expected="sum")
    check_dtype(OP, "per_sample_weights", weights, (torch.float32,))
    if weights.shape != indices.shape:
        raise KernelError(
            f"{OP}: per_sample_weights has the wrong shape", got=list(weights.shape), expected=list(indices.shape)
        )


def _check_borders(offsets: Tensor, count: int) -> None:
    before = 0
    values = offsets.tolist()
    for i, value in enumerate(values):
        edge = (i == 0 and value != 0) or (i + 1 == len(values) and value != count)
        if value < before or edge or value > count:
            raise KernelError(
                f"{OP}: offsets are no borders between bags",
                got=f"offsets[{i}] = {value}",
                expected=f"0, then ascending, to the number of indices, {count}",
            )
        before = value


define(
    "embedding_bag(Tensor weight, Tensor scale, Tensor zero_point, Tensor indices, Tensor offsets, int bits, "
    "int columns, int mode, Tensor? per_sample_weights=None, int? padding_idx=None) -> Tensor",
    reference=reference,
    fake=_fake,
)
