"""Observe, average, choose qparams and fake-quantize in one call, under torch's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import SMALLEST_NORMAL
from fxquant.kernels.call import Call, MutableTensor, define_operator
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams
from fxquant.kernels.fake_quantize.cachemask import copied, switched
from fxquant.kernels.fake_quantize.fake_quantize import StraightThrough
from fxquant.kernels.fake_quantize.moving_average_qparams import moving_average_qparams
from fxquant.kernels.gradient import differentiate
from fxquant.kernels.quantize.affine import FLOATS

OP = "fxquant::fused_moving_avg_obs_fake_quant"


def fused_moving_avg_obs_fake_quant(
    input: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Tensor:
    """Average the range of a batch into the running one, choose qparams for that, and fake-quantize.

    ``running_min``, ``running_max``, ``scale`` and ``zero_point`` are changed in place: the ranges where
    ``observer_on``, the qparams where ``fake_quant_on``. The gradient of ``input`` is straight-through.

    Args:
        input: float32, float64, float16 or bfloat16, any shape and strides. An empty one changes nothing.
        observer_on: One number of any dtype; 0: the running range stays. On a GPU, reading it waits for it.
        fake_quant_on: One number of any dtype; 0: the result is a copy of ``input``, and the qparams stay.
        running_min: float32 [1] or []; per row [C], or [0], which becomes [C]. inf before the first batch.
        running_max: The same; -inf before the first batch.
        scale: float32, as many as of ``running_min``.
        zero_point: int32, as many.
        averaging_const: Weight of this batch, 0 to 1; the first batch sets the range.
        quant_min: Smallest quantized value; an int32.
        quant_max: Largest quantized value; an int32.
        ch_axis: The dimension of the channels; negative ones count from the end.
        per_row_fake_quant: One range, scale and zero point per index of ``ch_axis``, else one for the tensor.
        symmetric_quant: The zero point is the middle of the limits: 0 if ``quant_min`` is negative, else the upper of
            the two middles.

    Returns:
        The dtype, shape and memory format of ``input``; always a new tensor.

    Raises:
        RuntimeError: an argument is not as above; the message names it. Fake quantization is on, and nothing finite was
            observed yet.

    Source:
        Signature: ``torch.fused_moving_avg_obs_fake_quant``, which takes float32 only, and per row axis 0 only. Here
        values that are NaN or infinite are left out of the range, and symmetric qparams are those of the observers: the
        scale is ``max(-running_min, running_max) / ((quant_max - quant_min) / 2)``.
    """
    if per_row_fake_quant and running_min.numel() == 0 and input.numel() > 0:
        channels = input.shape[check_axis(OP, ch_axis, input.dim())]
        running_min.resize_(channels).fill_(torch.inf)
        running_max.resize_(channels).fill_(-torch.inf)
        scale.resize_(channels)
        zero_point.resize_(channels)
    return torch.ops.fxquant._fused_moving_avg_obs_fq_helper.default(
        input,
        observer_on,
        fake_quant_on,
        running_min,
        running_max,
        scale,
        zero_point,
        averaging_const,
        quant_min,
        quant_max,
        ch_axis,
        per_row_fake_quant,
        symmetric_quant,
    )[0]


@dataclass(eq=False, repr=False)
class FusedMovingAvgObsFakeQuantCall(Call[tuple[Tensor, Tensor]]):
    """Do the same with a mask of where the gradient passes, for buffers that have their shape."""

    op: ClassVar[str] = OP
    results: ClassVar[str] = "(Tensor output, Tensor mask)"
    composed: ClassVar[bool] = True
    gradient: ClassVar[bool] = True

    input: Tensor
    observer_on: Tensor
    fake_quant_on: Tensor
    running_min: MutableTensor
    running_max: MutableTensor
    scale: MutableTensor
    zero_point: MutableTensor
    averaging_const: float
    quant_min: int
    quant_max: int
    ch_axis: int
    per_row_fake_quant: bool
    symmetric_quant: bool

    def check(self) -> int | None:
        """Check the arguments, and return the axis of the channels."""
        op, input = self.op, self.input
        check_dtype(op, "input", input, FLOATS)
        per_channel = self.per_row_fake_quant or self.ch_axis >= input.dim()
        axis = check_axis(op, self.ch_axis, input.dim()) if per_channel else None
        for name, values, dtype in (
            ("running_min", self.running_min, torch.float32),
            ("running_max", self.running_max, torch.float32),
            ("scale", self.scale, torch.float32),
            ("zero_point", self.zero_point, torch.int32),
        ):
            check_dtype(op, name, values, (dtype,))
            check_count(op, name, values, 1 if axis is None else input.shape[axis])
        check_limits(op, self.quant_min, self.quant_max)
        return axis

    def empty_result(self) -> tuple[Tensor, Tensor]:
        self.check()
        return torch.empty_like(self.input), torch.empty_like(self.input, dtype=torch.bool)

    def reference(self) -> tuple[Tensor, Tensor]:
        observes = switched(self.op, "observer_on", self.observer_on)
        quantizes = switched(self.op, "fake_quant_on", self.fake_quant_on)
        input, ranges, qparams = self.input, (self.running_min, self.running_max), (self.scale, self.zero_point)
        if input.numel() == 0:
            return copied(input)
        axis, limits = self.check(), (self.quant_min, self.quant_max)
        middle = _middle(*limits) if self.symmetric_quant else None
        # Observe: average the range of the batch into the running one, and choose qparams.
        if observes:
            low, high, *chosen, _ = moving_average_qparams(
                input, *ranges, axis, self.averaging_const, SMALLEST_NORMAL, *limits, middle
            )
            self.running_min.copy_(low)
            self.running_max.copy_(high)
        else:
            chosen = list(affine_qparams(*ranges, *limits, middle, SMALLEST_NORMAL))
        if not quantizes:
            return copied(input)
        if not bool((self.running_min <= self.running_max).all()):
            raise KernelError(
                f"{self.op}: there is no range to choose qparams for",
                got="running_min above running_max",
                expected="a batch with finite values, observed before or now",
            )
        # Fake-quantize with them.
        for buffer, values in zip(qparams, chosen, strict=True):
            buffer.copy_(values.reshape(buffer.shape))
        if axis is None:
            return torch.ops.fxquant.fake_quantize_per_tensor_affine_cachemask.tensor_qparams(input, *qparams, *limits)
        return torch.ops.fxquant.fake_quantize_per_channel_affine_cachemask.default(input, *qparams, axis, *limits)


def _middle(quant_min: int, quant_max: int) -> int:
    return 0 if quant_min < 0 else (quant_min + quant_max + 1) // 2


define_operator(FusedMovingAvgObsFakeQuantCall, "_fused_moving_avg_obs_fq_helper")
_HELPER = torch.ops.fxquant._fused_moving_avg_obs_fq_helper.default
differentiate(_HELPER, lambda *args: StraightThrough.apply(_HELPER, *args))
