"""``fxquant::moving_average_qparams``: measure a batch, average its range into the running one, choose qparams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits, check_zero_points
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams
from fxquant.kernels.quantize.affine import FLOATS

_LARGEST = torch.finfo(torch.float32).max

Result = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(eq=False, repr=False)
class MovingAverageQParamsCall(Call[Result]):
    """Average the range of a batch into the running range, and choose qparams for that, in one pass over the data.

    Returns:
        The new ``running_min`` and ``running_max``, of their shape; ``scale`` float32 [C] and ``zero_point`` int32 [C]
        for them; how many values of ``x`` are NaN or infinite in float32, int64 []: those are left out. A channel
        without a finite value keeps its range; if it never had one, its scale is ``eps``.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it.

    Source:
        Jacob et al., arXiv:1712.05877, section 3.1.
    """

    op: ClassVar[str] = "fxquant::moving_average_qparams"
    results: ClassVar[str] = "(Tensor, Tensor, Tensor, Tensor, Tensor)"

    x: Tensor
    """float32, float64, float16 or bfloat16, any strides, at least one value."""
    running_min: Tensor
    """float32 [C] ([] or [1] per tensor); inf before the first batch."""
    running_max: Tensor
    """The same, -inf before the first batch."""
    axis: int | None
    """The dimension of the channels, negative ones count from the end; None: one range for the tensor."""
    averaging_constant: float
    """Weight of this batch, 0 to 1; the first batch sets the range."""
    eps: float
    """Smallest scale."""
    quant_min: int
    """Smallest quantized value; an int32."""
    quant_max: int
    """Largest quantized value; an int32."""
    middle: int | None
    """Zero point of symmetric quantization, within the limits; None: the zero point is chosen too."""

    def check(self) -> int | None:
        """Check the arguments, and return the axis counted from the first dimension."""
        op, x = self.op, self.x
        check_dtype(op, "x", x, FLOATS)
        axis = None if self.axis is None else check_axis(op, self.axis, x.dim())
        for name, values in (("running_min", self.running_min), ("running_max", self.running_max)):
            check_dtype(op, name, values, (torch.float32,))
            check_count(op, name, values, 1 if axis is None else x.shape[axis])
        if x.numel() == 0:
            raise KernelError(f"{op}: x is empty", got=list(x.shape), expected="at least one value")
        check_limits(op, self.quant_min, self.quant_max)
        if self.middle is not None:
            check_zero_points(op, self.middle, self.quant_min, self.quant_max)
        for name, value in (("averaging_constant", self.averaging_constant), ("eps", self.eps)):
            if not abs(value) <= _LARGEST:
                raise KernelError(f"{op}: {name} is out of range", got=f"{value:g}", expected="a finite float32")
        return axis

    def empty_result(self) -> Result:
        axis, like = self.check(), self.running_min
        channels = [1 if axis is None else self.x.shape[axis]]
        scale, zero_point = like.new_empty(channels), like.new_empty(channels, dtype=torch.int32)
        nonfinite = like.new_empty([], dtype=torch.int64)
        return torch.empty_like(like), torch.empty_like(self.running_max), scale, zero_point, nonfinite

    def reference(self) -> Result:
        axis, x, running_min = self.check(), self.x, self.running_min
        # The range of the finite values of each channel.
        values, infinity = x.float(), torch.tensor(torch.inf, device=x.device)
        finite = values.isfinite()
        reduced = [d for d in range(x.dim()) if d != axis]
        lows, highs = torch.where(finite, values, infinity), torch.where(finite, values, -infinity)
        low = (lows.amin(reduced) if reduced or not x.dim() else lows).reshape(running_min.shape)
        high = (highs.amax(reduced) if reduced or not x.dim() else highs).reshape(running_min.shape)
        running_max = self.running_max.reshape(running_min.shape)
        # The running range, which the first batch sets, and which a channel without finite values keeps.
        started, seen = running_min <= running_max, low <= high
        new = []
        for before, batch in ((running_min, low), (running_max, high)):
            blended = torch.where(started, before + self.averaging_constant * (batch - before), batch)
            new.append(torch.where(seen, blended, before))
        smallest, largest = (torch.atleast_1d(each) for each in new)
        qparams = affine_qparams(smallest, largest, self.quant_min, self.quant_max, self.middle, self.eps)
        return new[0], new[1].reshape(self.running_max.shape), *qparams, (~finite).sum()


moving_average_qparams, reference = define_operator(MovingAverageQParamsCall)
