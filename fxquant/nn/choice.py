"""Which operator runs a convolution or a linear layer: fxquant's own, the framework's, or the Python reference."""

from __future__ import annotations

import math

from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.conv2d import MOST_TAPS
from fxquant.kernels.conv_reference import ConvGeometry
from fxquant.kernels.library import SETTINGS, native_status
from fxquant.kernels.onednn import onednn_status


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
    if geometry is None:
        return ""
    if geometry.spatial == 3:
        return "the native operator has at most two spatial dimensions"
    if math.prod(geometry.kernel_size) > MOST_TAPS:
        return f"the native operator takes windows of at most {MOST_TAPS} elements"
    return ""


def onednn_refusal(weight_zero_point: Tensor) -> str:
    """Why the framework's oneDNN operator cannot run a layer with this zero point; empty if it can."""
    if weight_zero_point.device.type != "cpu":
        return f"the oneDNN operators run on the CPU, not on {weight_zero_point.device.type}"
    if not onednn_status().usable:
        return onednn_status().reason
    if bool(weight_zero_point.any()):
        return "the oneDNN operators take no zero point of the weight"
    return ""


def check_reference_may_run(unit: str, native: str, onednn: str) -> None:
    """Refuse what is left to the Python reference where the user insists on kernels.

    Args:
        unit: Name of the layer, for the message.
        native: What ``native_refusal`` says of it.
        onednn: What ``onednn_refusal`` says of it.

    Raises:
        KernelError: FXQUANT_KERNELS=native.
    """
    if SETTINGS.kernels == "native":
        raise KernelError(
            "no kernel runs this layer, only the Python reference does",
            at=unit,
            got="FXQUANT_KERNELS=native",
            expected=f"a layer that a kernel takes; but {native}, and {onednn}",
            hint="FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing",
        )
