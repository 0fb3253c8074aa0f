"""Weights of quantized modules: their rounding, their memory order, and the kernel that multiplies by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError, LoweringError
from fxquant.kernels.conv.conv import MOST_TAPS
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.library import SETTINGS, native_status
from fxquant.kernels.quantize.quantize import quantize
from fxquant.nn.base import PACKING_LOCK, QuantizedModule
from fxquant.plan.spec import QParams

LARGEST_FAN_IN = (2**31 - 1) // (255 * 128)
"""Products of 8 bit numbers that an int32 sum holds for certain."""


def integer_weight(weight: Tensor, qparams: QParams) -> tuple[Tensor, QParams]:
    """Quantize a weight.

    Args:
        weight: float [C_out, ...].
        qparams: At most 8 bits, one scale for the tensor or one per index of dimension 0.

    Returns:
        The quantized values, int8 of the shape of ``weight``, and their qparams: ``qparams``, with the axis as
        0 or None; unsigned values are shifted down by half their range, so that int8 can store them.

    Raises:
        LoweringError: the weight holds inf or NaN, the qparams are none that int8 operators take, or the sum of
            products could leave the range of int32.
    """
    scheme = qparams.scheme
    if scheme.bits > 8 or scheme.group_size is not None or scheme.float_qparams:
        raise LoweringError(
            "int8 operators cannot take the qparams of this weight",
            got=str(scheme),
            expected="at most 8 bits, one scale and zero point for the tensor or for each output channel",
        )
    axis = scheme.axis if scheme.axis is None else scheme.axis % weight.dim()
    if axis not in (None, 0):
        raise LoweringError(
            "int8 operators need one scale per output channel of the weight",
            got=f"axis={scheme.axis} of a weight of shape {list(weight.shape)}",
            expected="axis=0, or one scale for the whole tensor",
        )
    refuse_not_finite("the weight holds", weight, "finite weights")
    if (fan_in := weight[0].numel() if len(weight) else 0) > LARGEST_FAN_IN:
        raise LoweringError(
            "too many products per output for int32 sums", got=fan_in, expected=f"at most {LARGEST_FAN_IN}"
        )
    shift = 0 if scheme.signed else 2 ** (scheme.bits - 1)
    limits = (scheme.quant_min - shift, scheme.quant_max - shift)
    as_signed = QParams(
        replace(scheme, signed=True, axis=axis, limits=limits if scheme.limits else None),
        qparams.scale,
        qparams.zero_point - shift,
    )
    integers = quantize(weight.detach(), as_signed.scale, as_signed.zero_point, *limits, torch.int8, axis)
    return integers.contiguous(), as_signed


def each_channel_is_a_group(layer: Any) -> bool:
    """Tell whether a layer of weight [C, C_out / groups, ...] is depthwise: dimension 0 then counts outputs too."""
    return tuple(layer.weight.shape[:2]) == (getattr(layer, "groups", 0), 1)


def all_finite(values: Tensor) -> bool:
    """Tell whether no value is inf or NaN; several times quicker than ``isfinite().all()``, which makes two tensors."""
    return not values.numel() or all(math.isfinite(bound) for bound in torch.aminmax(values.detach()))


def count_not_finite(values: Tensor) -> str:
    """Say for a message how many values are inf or NaN."""
    return f"{int((~torch.isfinite(values)).sum())} of {values.numel()} values are inf or NaN"


def refuse_not_finite(subject: str, values: Tensor, expected: str) -> None:
    """Refuse values of a layer of which some are inf or NaN.

    Args:
        subject: Begins the message: "the weight holds".
        values: The values.
        expected: Says what they should be.

    Raises:
        LoweringError: some of them are inf or NaN.
    """
    if not all_finite(values):
        raise LoweringError(f"{subject} values that are not finite", got=count_not_finite(values), expected=expected)


def float_bias(bias: Tensor | None) -> Tensor | None:
    """Return a bias as int8 operators take it: float32 [C_out] or None.

    Raises:
        LoweringError: it holds inf or NaN.
    """
    if bias is None:
        return None
    refuse_not_finite("the bias holds", bias, "a finite bias; with a batch norm folded in, finite statistics too")
    return bias.detach().to(torch.float32).clone()


class WeightedModule(QuantizedModule):
    """A module with an int8 weight.

    The weight is a buffer until the module is packed, as a rule in ``convert``. Where a kernel packs it, only the
    packed order is kept from then on, and the module has no such buffer: the weight would lie in memory twice. State
    dicts, copies and pickles hold it in the order of the float layer all the same, and :meth:`unpacked_weight` returns
    it so. Reading the attribute ``weight`` restores the buffer until the next packing: what is written into it counts
    after :meth:`invalidate`, as for any buffer, and the weight lies in memory twice until then. What is written into
    the tensor of a state dict does not reach the module.
    """

    weight_shape: torch.Size
    """Shape of the weight before it is packed."""

    def add_weight(self, integers: Tensor) -> None:
        """Keep a weight, int8 as the float layer has it."""
        self.weight_shape = integers.shape
        self._set_buffer(integers)

    @property
    def weight(self) -> Tensor:
        """Return the weight, int8 in the order of the float layer."""
        with PACKING_LOCK:
            weight = self.unpacked_weight()
            self._set_buffer(weight)
        return weight

    @weight.setter
    def weight(self, integers: Tensor) -> None:
        self._set_buffer(integers)

    def unpacked_weight(self) -> Tensor:
        """Return the weight, int8 in the order of the float layer. The module keeps no copy of it."""
        with PACKING_LOCK:
            if (weight := self._buffers.get("weight")) is not None:
                return weight
            unpack = unpack_method_of(self._packed)
            assert unpack is not None
            return unpack()

    def after_packing(self) -> None:
        """Keep the weight in packed order alone, if there is one."""
        if unpack_method_of(self._packed) is not None:
            self._set_buffer(None)

    def invalidate(self) -> None:
        """Drop what was packed, but not the weight."""
        with PACKING_LOCK:
            self._set_buffer(self.unpacked_weight())
            super().invalidate()

    def _set_buffer(self, weight: Tensor | None) -> None:
        """Make ``weight`` the buffer ``weight``, before all others; None: drop that buffer."""
        others = {name: buffer for name, buffer in self._buffers.items() if name != "weight"}
        buffers = others if weight is None else {"weight": weight, **others}
        self.__dict__["_buffers"] = buffers  # at once, for all threads

    @contextmanager
    def _with_weight_buffer(self) -> Iterator[None]:
        """Have the buffer ``weight`` inside the block."""
        with PACKING_LOCK:
            before = self._buffers.get("weight")
            self._set_buffer(self.unpacked_weight())
            try:
                yield
            finally:
                self._set_buffer(before)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WeightedModule:
        self.invalidate()
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.invalidate()
        super()._load_from_state_dict(*args, **kwargs)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with self._with_weight_buffer():
            super()._save_to_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        with PACKING_LOCK:
            weight = self.unpacked_weight()
            if get_spawning_popen() is not None:  # the new process is handed the memory later than this returns
                self._set_buffer(weight)
        return {**super().__getstate__(), "_buffers": {"weight": weight, **self._buffers}}


def unpack_method_of(packed: Any) -> Callable[[], Tensor] | None:
    """Return the method of a packed kernel that gives its weight back in float order; None if it has none."""
    return getattr(packed, "unpacked", None)


def why_not_native(weight_zero_point: Tensor, geometry: ConvGeometry | None = None) -> str:
    """Say why fxquant's own operator cannot run a layer; empty if it can.

    Args:
        weight_zero_point: Zero point of the weight, on the device where the layer runs.
        geometry: Geometry of a convolution; None: it is a linear layer.
    """
    status, device = native_status(), weight_zero_point.device.type
    if device not in status.devices:
        return status.reason or f"no native kernels for {device}"
    if bool(weight_zero_point.any()):
        return "the int8 operators take no zero point of the weight"
    if geometry is not None and math.prod(geometry.kernel_size) > MOST_TAPS:
        return f"the int8 operators take windows of at most {MOST_TAPS} elements"
    return ""


def kernel_of(reason: str) -> str:
    """Return what runs a layer of which :func:`why_not_native` says this: ``native``, or ``reference`` and why."""
    return f"reference: {reason}" if reason else "native"


def check_reference_may_run(unit: str, reason: str) -> None:
    """Refuse what is left to the Python reference where the user insists on kernels.

    Args:
        unit: Name of the layer, for the message.
        reason: What :func:`why_not_native` says of it.

    Raises:
        KernelError: FXQUANT_KERNELS=native.
    """
    if SETTINGS.kernels == "native":
        raise KernelError(
            "no kernel runs this layer, only the Python reference does",
            at=unit,
            got="FXQUANT_KERNELS=native",
            expected=f"a layer that a kernel takes; but {reason}",
            hint="FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing",
        )
