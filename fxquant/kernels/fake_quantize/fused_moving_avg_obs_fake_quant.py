"""Observe, average, choose the grid and fake-quantize in one call, under torch's name."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import SMALLEST_NORMAL
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams
from fxquant.kernels.fake_quantize.cachemask import copied, switched
from fxquant.kernels.fake_quantize.fake_quantize import StraightThrough
from fxquant.kernels.fake_quantize.moving_average_qparams import moving_average_qparams
from fxquant.kernels.gradient import differentiate
from fxquant.kernels.library import compose
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
    """Average the range of a batch into the running one, choose the grid for that, round to it and map back.

    ``running_min``, ``running_max``, ``scale`` and ``zero_point`` are changed in place: the ranges where
    ``observer_on``, the grid where ``fake_quant_on``. The gradient of ``input`` is straight-through.

    Args:
        input: float32, float64, float16 or bfloat16, any shape and strides. An empty one changes nothing.
        observer_on: One number of any dtype; 0: the running range stays. On a GPU, reading it waits for it.
        fake_quant_on: One number of any dtype; 0: the result is a copy of ``input``, and the grid stays.
        running_min: float32 [1] or []; per row [C], or [0], which becomes [C]. inf before the first batch.
        running_max: The same; -inf before the first batch.
        scale: float32, as many as of ``running_min``; real units per step.
        zero_point: int32, as many; in steps.
        averaging_const: Weight of this batch, 0 to 1; the first batch sets the range.
        quant_min: Smallest step; an int32.
        quant_max: Largest step; an int32.
        ch_axis: The dimension of the channels; negative ones count from the end.
        per_row_fake_quant: One range and one grid per index of ``ch_axis``, else one for the tensor.
        symmetric_quant: The zero point is the middle of the grid: 0 if ``quant_min`` is negative, else the upper of the
            two middles.

    Returns:
        The dtype, shape and memory format of ``input``; always a new tensor.

    Raises:
        RuntimeError: an argument is not as above; the message names it. Fake quantization is on, and nothing finite was
            observed yet.

    Source:
        Signature: ``torch.fused_moving_avg_obs_fake_quant``, which takes float32 only, and per row axis 0 only. Here
        values that are NaN or infinite are left out of the range, and a symmetric grid is that of the observers: its
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


def _helper(
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
    per_row_fake_quant: bool,
    symmetric_quant: bool,
) -> tuple[Tensor, Tensor]:
    observes, quantizes = switched(OP, "observer_on", observer_on), switched(OP, "fake_quant_on", fake_quant_on)
    if input.numel() == 0:
        return copied(input)
    ranges, qparams = (running_min, running_max), (scale, zero_point)
    axis = _check(input, *ranges, *qparams, quant_min, quant_max, ch_axis, per_row_fake_quant)
    limits = quant_min, quant_max
    middle = _middle(quant_min, quant_max) if symmetric_quant else None
    if observes:
        low, high, *chosen, _ = moving_average_qparams(
            input, *ranges, axis, averaging_const, SMALLEST_NORMAL, *limits, middle
        )
        running_min.copy_(low)
        running_max.copy_(high)
    else:
        chosen = list(affine_qparams(*ranges, *limits, middle, SMALLEST_NORMAL))
    if not quantizes:
        return copied(input)
    if not bool((running_min <= running_max).all()):
        raise KernelError(
            f"{OP}: there is no range to choose a grid for",
            got="running_min above running_max",
            expected="a batch with finite values, observed before or now",
        )
    for buffer, values in zip(qparams, chosen, strict=True):
        buffer.copy_(values.reshape(buffer.shape))
    if axis is None:
        return torch.ops.fxquant.fake_quantize_per_tensor_affine_cachemask.tensor_qparams(input, *qparams, *limits)
    return torch.ops.fxquant.fake_quantize_per_channel_affine_cachemask.default(input, *qparams, axis, *limits)


def _middle(quant_min: int, quant_max: int) -> int:
    return 0 if quant_min < 0 else (quant_min + quant_max + 1) // 2


def _check(
    input: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool,
) -> int | None:
    check_dtype(OP, "input", input, FLOATS)
    axis = check_axis(OP, ch_axis, input.dim()) if per_row_fake_quant or ch_axis >= input.dim() else None
    channels = 1 if axis is None else input.shape[axis]
    for name, values, dtype in (
        ("running_min", running_min, torch.float32),
        ("running_max", running_max, torch.float32),
        ("scale", scale, torch.float32),
        ("zero_point", zero_point, torch.int32),
    ):
        check_dtype(OP, name, values, (dtype,))
        check_count(OP, name, values, channels)
    check_limits(OP, quant_min, quant_max)
    return axis


def _fake(
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
    per_row_fake_quant: bool,
    symmetric_quant: bool,
) -> tuple[Tensor, Tensor]:
    _check(
        *(input, running_min, running_max, scale, zero_point),
        *(quant_min, quant_max, ch_axis, per_row_fake_quant),
    )
    return torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)


compose(
    "_fused_moving_avg_obs_fq_helper(Tensor input, Tensor observer_on, Tensor fake_quant_on, Tensor(a!) running_min, "
    "Tensor(b!) running_max, Tensor(c!) scale, Tensor(d!) zero_point, float averaging_const, int quant_min, "
    "int quant_max, int ch_axis, bool per_row_fake_quant, bool symmetric_quant) -> (Tensor output, Tensor mask)",
    kernel=_helper,
    fake=_fake,
    gradient=True,
)
_HELPER = torch.ops.fxquant._fused_moving_avg_obs_fq_helper.default
differentiate(_HELPER, lambda *args: StraightThrough.apply(_HELPER, *args))
