"""``fxquant::embedding_bag``: sums, means or maxima of rows of a quantized table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import define_operator
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.embedding.lookup import LookupCall, check_indices, check_rows

MODES = ("sum", "mean", "max")
"""The number of a mode is its place."""


@dataclass(eq=False, repr=False)
class EmbeddingBagCall(LookupCall):
    """Look rows up, and reduce those of each bag to one: as ``fxquant::embedding``, then in float32.

    Rows are added in the order of their indices, each weight is multiplied first, a mean is divided at the end; so
    every kernel rounds alike. A bag without rows gives 0.

    Returns:
        float32 [bags, columns], contiguous.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it. Values of indices and offsets that
            lie on a GPU are not checked: there a wrong index gives NaN, or, of maxima, may be passed over.

    Source:
        ``torch.nn.functional.embedding_bag``.
    """

    op: ClassVar[str] = "fxquant::embedding_bag"

    weight: Tensor
    """The table: this and the next two, with ``bits`` and ``columns``, are as ``fxquant::embedding`` takes them."""
    scale: Tensor
    zero_point: Tensor
    indices: Tensor
    """int32 or int64 [n], 0 to ``rows - 1``."""
    offsets: Tensor
    """int32 or int64 [bags + 1], ascending from 0 to n: bag b holds the indices from ``offsets[b]`` to before
    ``offsets[b + 1]``."""
    bits: int
    columns: int
    mode: int
    """0 (sum), 1 (mean) or 2 (max)."""
    per_sample_weights: Tensor | None = None
    """float32 [n], for sums only."""
    padding_idx: int | None = None
    """An index that counts for nothing, not even for a mean."""

    def empty_result(self) -> Tensor:
        op, offsets = self.op, self.offsets
        self.check_table()
        if not 0 <= self.mode < len(MODES):
            raise KernelError(f"{op}: mode is out of range", got=self.mode, expected="0 (sum), 1 (mean) or 2 (max)")
        check_indices(op, "offsets", offsets)
        if self.indices.dim() != 1:
            got = list(self.indices.shape)
            raise KernelError(f"{op}: indices has the wrong shape", got=got, expected="one dimension")
        if offsets.dim() != 1 or offsets.numel() == 0:
            raise KernelError(f"{op}: offsets has the wrong shape", got=list(offsets.shape), expected="[bags + 1]")
        if self.per_sample_weights is not None:
            self._check_weights(self.per_sample_weights)
        return self.scale.new_empty([offsets.numel() - 1, self.columns])

    def reference(self) -> Tensor:
        y = self.empty_result().zero_()
        check_rows(self.op, self.indices, len(self.weight))
        self._check_offsets()
        used = y.new_zeros(len(y))
        starts, ends = self.offsets[:-1].long(), self.offsets[1:].long()
        for k in range(int((ends - starts).max()) if len(y) else 0):  # the k-th rows of all bags at once
            bags = torch.nonzero(starts + k < ends).flatten()
            at = starts[bags] + k
            if self.padding_idx is not None:
                counts = self.indices[at].long() != self.padding_idx
                bags, at = bags[counts], at[counts]
            rows = self.float_rows(self.indices[at].long())
            if self.per_sample_weights is not None:
                rows = rows * self.per_sample_weights[at][:, None]
            if MODES[self.mode] == "max":
                y[bags] = torch.where((used[bags] == 0)[:, None] | (rows > y[bags]), rows, y[bags])
            else:
                y[bags] = y[bags] + rows
            used[bags] += 1
        return y / used.clamp(min=1)[:, None] if MODES[self.mode] == "mean" else y

    def _check_weights(self, weights: Tensor) -> None:
        if MODES[self.mode] != "sum":
            raise KernelError(f"{self.op}: only sums take per_sample_weights", got=MODES[self.mode], expected="sum")
        check_dtype(self.op, "per_sample_weights", weights, (torch.float32,))
        if weights.shape != self.indices.shape:
            got, expected = list(weights.shape), list(self.indices.shape)
            raise KernelError(f"{self.op}: per_sample_weights has the wrong shape", got=got, expected=expected)

    def _check_offsets(self) -> None:
        count, before = self.indices.numel(), 0
        values = self.offsets.tolist()
        for i, value in enumerate(values):
            edge = (i == 0 and value != 0) or (i + 1 == len(values) and value != count)
            if value < before or edge or value > count:
                raise KernelError(
                    f"{self.op}: offsets are no borders between bags",
                    got=f"offsets[{i}] = {value}",
                    expected=f"0, then ascending, to the number of indices, {count}",
                )
            before = value


embedding_bag, reference = define_operator(EmbeddingBagCall)
