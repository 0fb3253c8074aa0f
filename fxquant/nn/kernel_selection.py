"""Whether fxquant's own operators run a convolution or a linear layer, or the Python reference does, and why."""

from __future__ import annotations

import math

from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.conv.conv import MOST_TAPS
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.library import SETTINGS, native_status


def native_refusal(weight_zero_point: Tensor, geometry: ConvGeometry | None = None) -> str:
    """Why fxquant's own operator cannot run a layer; empty if it can.

    Args:
        weight_zero_point: Of the layer, on the device where it runs.
        geometry: None: a linear layer.
    """
    status, device = native_status(), weight_zero_point.device.type
    if device not in status.devices:
        return status.reason or f"no native kernels for {device}"
    if bool(weight_zero_point.any()):
        return "the int8 operators take no zero point of the weight"
    if geometry is not None and math.prod(geometry.kernel_size) > MOST_TAPS:
        return f"the int8 operators take windows of at most {MOST_TAPS} elements"
    return ""


def kernel_of(refusal: str) -> str:
    """What runs a layer of which :func:`native_refusal` says this: ``native``, or ``reference`` and why."""
    return f"reference: {refusal}" if refusal else "native"


def check_reference_may_run(unit: str, refusal: str) -> None:
    """Refuse what is left to the Python reference where the user insists on kernels.

    Args:
        unit: Name of the layer, for the message.
        refusal: What :func:`native_refusal` says of it.

    Raises:
        KernelError: FXQUANT_KERNELS=native.
    """
    if SETTINGS.kernels == "native":
        raise KernelError(
            "no kernel runs this layer, only the Python reference does",
            at=unit,
            got="FXQUANT_KERNELS=native",
            expected=f"a layer that a kernel takes; but {refusal}",
            hint="FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing",
        )
