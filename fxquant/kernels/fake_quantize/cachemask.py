"""Fake quantization that also gives its mask, under torch's names: for code that runs forward and backward itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.fake_quantize.fake_quantize import CHANNEL_OP, FakeQuantizeTensorQParamsCall, StraightThrough
from fxquant.kernels.fake_quantize.float_qparams import fake_quantize_float_qparams
from fxquant.kernels.gradient import differentiate


def fake_quantize_per_tensor_affine_cachemask(
    input: Tensor, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Do as :func:`~fxquant.kernels.fake_quantize_per_tensor_affine`, and say where the gradient passes.

    Arguments and errors are the same.

    Returns:
        The result, which has a gradient, and a mask: bool, of its shape and memory format, True where the rounded value
        lies in ``[quant_min, quant_max]``.

    Source:
        Signature: ``torch.ops.aten.fake_quantize_per_tensor_affine_cachemask``.
    """
    operator = torch.ops.fxquant.fake_quantize_per_tensor_affine_cachemask
    overload = operator.tensor_qparams if isinstance(scale, Tensor) else operator.default
    return overload(input, scale, zero_point, quant_min, quant_max)


def fake_quantize_per_channel_affine_cachemask(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Do as :func:`~fxquant.kernels.fake_quantize_per_channel_affine`, and say where the gradient passes.

    Arguments and errors are the same; results are those of :func:`fake_quantize_per_tensor_affine_cachemask`.

    Source:
        Signature: ``torch.ops.aten.fake_quantize_per_channel_affine_cachemask``.
    """
    if zero_point.is_floating_point():
        return fake_quantize_float_qparams(CHANNEL_OP, input, scale, zero_point, axis, quant_min, quant_max)
    return torch.ops.fxquant.fake_quantize_per_channel_affine_cachemask.default(
        input, scale, zero_point, axis, quant_min, quant_max
    )


def _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    input: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Do as :func:`fake_quantize_per_tensor_affine_cachemask`, with qparams as tensors and a switch.

    Args:
        input: As there.
        scale: As there; [1] or [].
        zero_point: As there; [1] or [].
        fake_quant_enabled: One number of any dtype. 0: the result is a copy, and the mask True everywhere. On a GPU,
            reading it waits for it.
        quant_min: As there.
        quant_max: As there.

    Raises:
        RuntimeError: as there; ``fake_quant_enabled`` is no single number.

    Source:
        Signature: ``torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams``.
    """
    return torch.ops.fxquant._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default(
        input, scale, zero_point, fake_quant_enabled, quant_min, quant_max
    )


def fake_quantize_per_tensor_affine_cachemask_backward(grad: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of the input: that of the result where ``mask``, else 0, even for an infinity or NaN.

    Args:
        grad: float32, float64, float16 or bfloat16, any shape and strides.
        mask: bool, of the shape of ``grad``.

    Returns:
        The dtype and shape of ``grad``, in the memory format of ``mask``.

    Raises:
        RuntimeError: dtype or shape do not fit; the message names the argument.
    """
    return torch.ops.fxquant.fake_quantize_backward.default(grad, mask)


def fake_quantize_per_channel_affine_cachemask_backward(grad: Tensor, mask: Tensor) -> Tensor:
    """Do the same as :func:`fake_quantize_per_tensor_affine_cachemask_backward`."""
    return torch.ops.fxquant.fake_quantize_backward.default(grad, mask)


def switched(op: str, name: str, switch: Tensor) -> bool:
    """Return what a switch says that is a tensor of one number."""
    if switch.numel() != 1:
        raise KernelError(f"{op}: {name} has the wrong shape", got=list(switch.shape), expected=[1])
    return bool(switch.item())


def copied(input: Tensor) -> tuple[Tensor, Tensor]:
    """Return what fake quantization gives where it is off: a copy, whose gradient passes everywhere."""
    return input.clone(), torch.ones_like(input, dtype=torch.bool)


@dataclass(eq=False, repr=False)
class SwitchedCall(Call[tuple[Tensor, Tensor]]):
    """Fake-quantize per tensor with a mask, or copy, as a tensor says."""

    op: ClassVar[str] = "fxquant::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    results: ClassVar[str] = "(Tensor output, Tensor mask)"
    composed: ClassVar[bool] = True
    gradient: ClassVar[bool] = True

    input: Tensor
    scale: Tensor
    zero_point: Tensor
    fake_quant_enabled: Tensor
    quant_min: int
    quant_max: int

    def empty_result(self) -> tuple[Tensor, Tensor]:
        qparams = (self.scale, self.zero_point, self.quant_min, self.quant_max)
        return FakeQuantizeTensorQParamsCall(self.input, *qparams).empty_result()

    def reference(self) -> tuple[Tensor, Tensor]:
        if not switched(self.op, "fake_quant_enabled", self.fake_quant_enabled):
            return copied(self.input)
        return torch.ops.fxquant.fake_quantize_per_tensor_affine_cachemask.tensor_qparams(
            self.input, self.scale, self.zero_point, self.quant_min, self.quant_max
        )


define_operator(SwitchedCall)
_SWITCHED = torch.ops.fxquant._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
differentiate(_SWITCHED, lambda *args: StraightThrough.apply(_SWITCHED, *args))
