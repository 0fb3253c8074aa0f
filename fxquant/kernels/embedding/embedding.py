"""``fxquant::embedding``: rows of a quantized table as float values, without a float table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fxquant.kernels.call import define_operator
from fxquant.kernels.embedding.lookup import LookupCall, check_rows


@dataclass(eq=False, repr=False)
class EmbeddingCall(LookupCall):
    """Look rows up, and give the float values they stand for: ``(weight[i] - zero_point[i]) * scale[i]``.

    Only the rows that are asked for are dequantized. The difference and the product are float64, and rounded once.

    Returns:
        float32 [*indices.shape, columns], contiguous.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it. Values of indices that lie on a GPU
            are not checked: there a wrong one gives NaN.

    Source:
        ``torch.nn.functional.embedding``; the qparams are those of torch's ``per_channel_affine_float_qparams``.
    """

    op: ClassVar[str] = "fxquant::embedding"

    weight: Tensor
    """uint8 or int8 [rows, columns]; or, for 4 bits, [rows, ceil(columns / 2)], as
    :func:`~fxquant.kernels.embedding.lookup.pack_halves` gives it."""
    scale: Tensor
    """float32 [rows]; or [1], one scale for all rows."""
    zero_point: Tensor
    """float32, of the same shape; need not be a whole number."""
    indices: Tensor
    """int32 or int64, any shape; 0 to ``rows - 1``."""
    bits: int
    """Of a quantized value, 4 or 8."""
    columns: int
    """Values of a row."""

    def empty_result(self) -> Tensor:
        self.check_table()
        return self.scale.new_empty([*self.indices.shape, self.columns])

    def reference(self) -> Tensor:
        y = self.empty_result()
        check_rows(self.op, self.indices, len(self.weight))
        return self.float_rows(self.indices.reshape(-1).long()).reshape(y.shape)


embedding, reference = define_operator(EmbeddingCall)
