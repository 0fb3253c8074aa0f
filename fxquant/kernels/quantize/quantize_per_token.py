"""``fxquant::quantize_per_token``: float values to quantized values, each row by its own range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import STORED
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_dtype, check_limits, check_zero_points
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams
from fxquant.kernels.quantize.affine import FLOATS, make_affine_qparams

_LARGEST = torch.finfo(torch.float32).max

Result = tuple[Tensor, Tensor, Tensor]


@dataclass(eq=False, repr=False)
class QuantizePerTokenCall(Call[Result]):
    """Choose qparams for each row of ``x``, from the smallest to the largest of its values, and quantize it with them.

    The range is that of the finite values, widened to hold 0; a row without any has the scale ``eps``. Rounding is to
    nearest, ties to even, and comes before the zero point is added. NaN becomes ``quant_min``; infinities saturate.

    Returns:
        The quantized values, ``dtype``, of the shape of ``x``, contiguous; ``scale`` float32 [rows] and ``zero_point``
        int32 [rows], in the order of the rows in memory.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it.

    Source:
        Yao et al., "ZeroQuant", arXiv:2206.01861, section 4.1 (token-wise quantization); Jacob et al.,
        arXiv:1712.05877, section 2.1.
    """

    op: ClassVar[str] = "fxquant::quantize_per_token"
    results: ClassVar[str] = "(Tensor, Tensor, Tensor)"
    recordable: ClassVar[bool] = True

    x: Tensor
    """float32, float64, float16 or bfloat16 [..., columns], any strides. Only float64 is computed in float64."""
    eps: float
    """Smallest scale."""
    quant_min: int
    """Smallest quantized value, within the range of ``dtype``."""
    quant_max: int
    """Largest quantized value."""
    middle: int | None
    """Zero point of symmetric quantization, within the limits; None: the zero points are chosen too."""
    dtype: torch.dtype
    """uint8 or int8."""

    def empty_result(self) -> Result:
        x = self.x
        if x.dim() == 0:
            raise KernelError(f"{self.op}: x has no dimension", got=[], expected="[..., columns]")
        check_choice(self)
        q = torch.empty_like(x, dtype=self.dtype, memory_format=torch.contiguous_format)
        rows = 1
        for size in x.shape[:-1]:
            rows *= size
        return q, x.new_empty([rows], dtype=torch.float32), x.new_empty([rows], dtype=torch.int32)

    def reference(self) -> Result:
        q, scale, zero_point = self.empty_result()
        rows = self.x.reshape(len(scale), self.x.shape[-1])
        values, infinity = rows.float(), torch.tensor(torch.inf, device=rows.device)
        # An empty row has no amin: a column of what no range reaches to stands in.
        finite, beyond = values.isfinite(), infinity.expand(len(scale), 1)
        low = torch.cat((torch.where(finite, values, infinity), beyond), 1).amin(1)
        high = torch.cat((torch.where(finite, values, -infinity), -beyond), 1).amax(1)
        chosen = affine_qparams(low, high, self.quant_min, self.quant_max, self.middle, self.eps)
        scale.copy_(chosen[0])
        zero_point.copy_(chosen[1])
        limits = (self.quant_min, self.quant_max)
        qparams = make_affine_qparams(self.op, "x", rows, scale, zero_point, 0, *limits)
        integers = qparams.saturate(qparams.round_to_quantized(rows)).to(torch.int32)
        return q.copy_(integers.to(self.dtype).view(q.shape)), scale, zero_point


class ChoosesQParams(Protocol):
    """A record whose operator measures float values, and chooses qparams for them."""

    op: ClassVar[str]
    x: Tensor
    eps: float
    quant_min: int
    quant_max: int
    middle: int | None
    dtype: torch.dtype


def check_choice(call: ChoosesQParams) -> None:
    """Check the dtypes, and what qparams are chosen with."""
    op = call.op
    check_dtype(op, "x", call.x, FLOATS)
    check_dtype(op, "dtype", call.dtype, STORED)
    check_limits(op, call.quant_min, call.quant_max, call.dtype)
    if call.middle is not None:
        check_zero_points(op, call.middle, call.quant_min, call.quant_max)
    if not abs(call.eps) <= _LARGEST:
        raise KernelError(f"{op}: eps is out of range", got=f"{call.eps:g}", expected="a finite float32")


quantize_per_token, reference = define_operator(QuantizePerTokenCall)
