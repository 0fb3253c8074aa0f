"""The base of the int8 modules: their state is plain tensors, and what a call needs beyond it is packed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import CalibrationError, InputError, LoweringError, MethodError
from fxquant.graph.packing import PackingModule
from fxquant.graph.state_values import check_entries, check_finite, check_integers, check_qparams
from fxquant.observers.base import cast_dtype, keeping_dtype
from fxquant.plan.spec import Clamp, QParams, QScheme

RESULT_NUMBERS = ("scale", "zero_point")
"""Attributes of a module whose result has qparams, in the order of ``scalars``."""

PACKING_LOCK = threading.RLock()
"""One lock for all modules: it is taken once per module, and a lock kept on the module could not be pickled."""


@dataclass(frozen=True, slots=True)
class FloatResult:
    """Says in what form a module gives float values. They are computed in float32."""

    dtype: torch.dtype = torch.float32
    """float32, float64, float16 or bfloat16. It follows when the module is cast, as that of a float layer does."""
    contiguous: bool = False
    """In the order of its dimensions, as the float value lay, though integers are channels last."""

    def of(self, result: Tensor) -> Tensor:
        """Bring a result into this form."""
        return (result.contiguous() if self.contiguous else result).to(self.dtype)

    def __str__(self) -> str:
        return str(self.dtype).removeprefix("torch.") + (" contiguous" if self.contiguous else "")


class QuantizedModule(PackingModule):
    """Base of the modules that run on quantized values.

    State is buffers only (uint8/int8 integers, float32 scales and biases, int32 zero points), so ``state_dict`` holds
    plain tensors. What a call needs beyond that (Python numbers for operator arguments, packed weights) is made by
    :meth:`pack` when a model is converted, and kept in ``_packed``. Loading a state dict, moving to a device, copying
    and unpickling drop it. Done to a whole model, its modules are packed again at once; done to a single module, at its
    next call. Writing into a buffer by hand does not drop it; call :meth:`invalidate` then.

    A subclass adds its qparams in the constructor, and implements :meth:`pack`, ``forward`` and :meth:`reference`::

        def forward(self, x: Tensor) -> Tensor:
            return (self._packed or self.packed())(x)
    """

    unit: str
    """Path of the module, or name of the value that it converts, for error messages. Set by the pass that makes it."""
    float_result: FloatResult | None
    """Form of the result of a module that gives float values, made without qparams ``y``; the same pass sets it."""

    _uncalibrated: str = ""
    """The role without a scale, where the state could not be packed for that: a graph is captured without values."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = ""
        self.float_result = None
        self._schemes: dict[str, QScheme] = {}
        self._packed = None

    def add_qparams(self, role: str, qparams: QParams) -> None:
        """Copy the qparams of one role to the buffers ``<role>_scale`` and ``<role>_zero_point``."""
        self._schemes[role] = qparams.scheme
        self.register_buffer(f"{role}_scale", qparams.scale.detach().to(torch.float32).clone())
        dtype = torch.float32 if qparams.scheme.float_qparams else torch.int32
        self.register_buffer(f"{role}_zero_point", qparams.zero_point.detach().to(dtype).clone())

    def qparams(self, role: str) -> QParams:
        """Return the qparams of one role, as the buffers have them now."""
        return QParams(self._schemes[role], getattr(self, f"{role}_scale"), getattr(self, f"{role}_zero_point"))

    def add_result(self, y: QParams | None) -> None:
        """Keep the qparams of the output, role ``y``; None: the result has float values, not rounded."""
        if y is None:
            self.float_result = FloatResult()
        else:
            self.add_qparams("y", y)

    def result_arguments(self, activation: Clamp | None = None) -> dict[str, Any]:
        """Return the fields of an ``Epilogue`` that say how the output is stored: ``activation`` narrows its limits."""
        if self.float_result is not None:
            return {"dtype": torch.float32}
        y, (scale, zero_point) = self.qparams("y"), self.scalars("y")
        low, high = integer_limits(y, activation)
        return {
            "y_scale": scale,
            "y_zero_point": zero_point,
            "quant_min": low,
            "quant_max": high,
            "dtype": y.scheme.dtype,
        }

    def finish_float_result(self, result: Tensor, activation: Clamp | None = None) -> Tensor:
        """Clamp float values by the activation, and bring them into their form; quantized values stay as they are."""
        if self.float_result is None:
            return result
        return self.float_result.of(result if activation is None else activation(result))

    def scalars(self, role: str) -> tuple[float, int]:
        """Return scale (a float32 value) and zero point per tensor, as the Python numbers that operators take."""
        qparams = self.qparams(role)
        return qparams.scale.item(), int(qparams.zero_point.item())

    def __getattr__(self, name: str) -> Any:
        """Give ``scale`` and ``zero_point`` of the result, role ``y``, as the numbers that layers of torch.ao have.

        Raises:
            MethodError: the result is on no scale: it has float values, or several scales.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in RESULT_NUMBERS:
                raise
        y = self.__dict__.get("_schemes", {}).get("y")
        if y is None or y.axis is not None:
            raise MethodError(
                f"a unit has no {name} of its result",
                at=self.unit or type(self).__name__,
                got="float values" if y is None else str(y),
                expected="a result of quantized values, with one scale and zero point",
                hint="print(module) shows the qparams that it has",
            ) from None
        return self.scalars("y")[RESULT_NUMBERS.index(name)]

    def packed(self) -> Any:
        """Return what :meth:`pack` makes of the present state. Several threads may come here first at once.

        Raises:
            CalibrationError: an operand has no scale yet (NaN); the message names the unit and the operand.
        """
        self.check_capture()
        found = self._packed
        if found is None:
            with PACKING_LOCK:
                found = self._packed
                if found is None:
                    self._check_calibrated()
                    with torch.inference_mode(False), torch.no_grad():  # it outlives this call
                        self._packed = found = self.pack()
                    self.after_packing()
        return found

    def check_capture(self) -> None:
        """Refuse to be captured in a graph before anything was packed: no graph reads values.

        Raises:
            CalibrationError: an operand has no scale yet, which a call would not change.
            InputError: the message names the unit.
        """
        if self._packed is None and torch.compiler.is_compiling():
            if self._uncalibrated:
                raise self._not_calibrated(self._uncalibrated)
            raise InputError(
                "a graph cannot be captured of this unit, whose state was changed since it was last read",
                at=self.unit or type(self).__name__,
                hint="call the model once before torch.export or torch.compile",
            )

    def pack(self) -> Any:
        """Return whatever ``forward`` needs beyond the buffers; not None."""
        raise NotImplementedError

    def after_packing(self) -> None:
        """Drop what is not needed beside ``_packed``: nothing, unless a subclass says so."""

    def invalidate(self) -> None:
        """Drop what was packed; the next call makes it again."""
        self._packed = None
        vars(self).pop("_uncalibrated", None)  # the class says that there is none, and files hold what modules have

    def reference(self, *inputs: Tensor) -> Tensor:
        """Compute the same result by the reference in Python: slow, on any device, the definition of what is right."""
        raise NotImplementedError

    def _check_calibrated(self) -> None:
        for role in self._schemes:
            if getattr(self, f"{role}_scale").isnan().any():
                self._uncalibrated = role
                raise self._not_calibrated(role)

    def _not_calibrated(self, role: str) -> CalibrationError:
        return CalibrationError(
            "this unit was converted without calibration, so its qparams are unknown",
            at=self.unit or type(self).__name__,
            got=f"{role}_scale = nan",
            expected="scales from calibration",
            hint="calibrate before convert, or load a state dict that was saved after calibration",
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedModule:
        """Move, but never cast: ``model.half()`` is about float layers; scales stay float32 to the bit."""
        super()._apply(keeping_dtype(fn), recurse)
        if self.float_result is not None:
            beside = next(self.buffers(), torch.empty(0))
            self.float_result = replace(self.float_result, dtype=cast_dtype(fn, self.float_result.dtype, beside))
        self.invalidate()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._check_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.invalidate()

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Refuse what no module of this kind can run on.

        Raises:
            StateError: the message names the key.
        """
        check_entries(self, state, prefix)
        for role, scheme in self._schemes.items():
            check_qparams(state, f"{prefix}{role}_scale", f"{prefix}{role}_zero_point", scheme)
        for name, buffer in self._buffers.items():
            if buffer is not None and not name.endswith(("_scale", "_zero_point")):
                if buffer.is_floating_point():
                    check_finite(state, prefix + name, dtype=buffer.dtype)
                else:
                    check_integers(state, prefix + name, buffer.dtype, self._stored_in(name))

    def _stored_in(self, name: str) -> QScheme | None:
        """Return the qparams of the quantized values in a buffer; None where it holds something else."""
        return self._schemes.get(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}

    def extra_repr(self) -> str:
        parts = [f"{role}: {describe_qparams(self.qparams(role))}" for role in self._schemes]
        return ", ".join(parts if self.float_result is None else [*parts, f"y: {self.float_result}"])


def integer_limits(y: QParams, activation: Clamp | None) -> tuple[int, int]:
    """Return the limits of an output, narrowed by an activation.

    ``x -> round(x * (1 / scale)) + zero_point`` is monotonic, so clamping the float value and then quantizing equals
    quantizing and then clamping the integer: an activation costs nothing, and is exact.

    Args:
        y: Qparams of the output, per tensor.
        activation: Bounds as float values, or None.

    Returns:
        Smallest and largest integer of the result, inclusive, inside the integer range of ``y``.
    """
    low, high = y.scheme.quant_min, y.scheme.quant_max
    if activation is None:
        return low, high

    def bound(value: float | None, default: int) -> int:
        if value is None:
            return default
        steps = torch.tensor(value, dtype=torch.float32) * (1.0 / y.scale.reshape(()).cpu())
        return int((torch.round(steps) + y.zero_point.reshape(()).cpu()).clamp(low, high))

    return bound(activation.low, low), bound(activation.high, high)


def describe_qparams(qparams: QParams) -> str:
    """Describe qparams in a few words, for ``print(module)``: type, scale (its range, per channel) and zero point."""
    scheme, scale, zero_point = qparams.scheme, qparams.scale, qparams.zero_point
    kind = f"{'int' if scheme.signed else 'uint'}{scheme.bits}"
    if scale.numel() == 1:
        return f"{kind} scale={scale.item():.4g} zero_point={zero_point.item()}"
    zero = "0" if not zero_point.any() else "per channel"
    return f"{kind} scale=[{scale.min().item():.4g}, {scale.max().item():.4g}] zero_point={zero}"


def counted(number: int, noun: str) -> str:
    """Count in words: ``1 channel``, ``3 channels``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def check_features(module: QuantizedModule, x: Tensor, features: int) -> None:
    """Refuse an input of a linear layer whose last dimension is not ``features`` long.

    Raises:
        InputError: the message names the unit.
    """
    if x.dim() and x.size(-1) == features:
        return
    shape = list(x.shape)
    raise InputError(
        "the input of a quantized linear layer has the wrong shape",
        at=module.unit or type(module).__name__,
        got=f"{counted(shape[-1], 'feature')} in {shape}" if shape else shape,
        expected=f"{counted(features, 'feature')}: [..., {features}]",
    )


HALF = 128
"""Distance between an int8 and the uint8 that takes its place."""


class SameDtypeModule(QuantizedModule):
    """Runs operators whose inputs and output share one dtype, on inputs that may come in the other one.

    uint8 and int8 of equal scale stand for the same float values, at quantized values 128 apart. So an
    input of the other dtype than the output is moved over by flipping its highest bit, and its zero point with it:
    nothing is rounded.
    """

    y_dtype: torch.dtype
    """uint8 or int8: of the output, and of the arithmetic."""

    def add_same_dtype_qparams(self, role: str, qparams: QParams) -> None:
        """Do as :meth:`add_qparams`, and refuse what does not fit a byte; ``y`` comes first.

        Raises:
            LoweringError: the qparams are of more than a byte, or have more than one scale.
        """
        self.add_qparams(role, byte_qparams("the output" if role == "y" else f"input {role}", qparams))
        if role == "y":
            self.y_dtype = qparams.scheme.dtype

    def take(self, role: str, q: Tensor) -> Tensor:
        """Return the input of a role, in the dtype of the arithmetic.

        Raises:
            InputError: it is not stored as its qparams say.
        """
        dtype = self._schemes[role].dtype
        if q.dtype != dtype:
            raise InputError(
                "a quantized operator got an input that it was not made for",
                at=self.unit or type(self).__name__,
                got=f"{role}: {q.dtype}",
                expected=dtype,
            )
        return q if dtype == self.y_dtype else (q.view(torch.uint8) ^ HALF).view(self.y_dtype)

    def numbers(self, role: str) -> tuple[float, int]:
        """Return scale and zero point of a role, in the dtype of the arithmetic."""
        scale, zero_point = self.scalars(role)
        if self._schemes[role].dtype == self.y_dtype:
            return scale, zero_point
        return scale, zero_point + (HALF if self.y_dtype == torch.uint8 else -HALF)


def byte_qparams(what: str, qparams: QParams) -> QParams:
    """Return the qparams of an activation, if int8 operators can take them.

    Raises:
        LoweringError: more than 8 bits, or more than one scale for the tensor.
    """
    scheme = qparams.scheme
    if scheme.bits > 8 or scheme.axis is not None or scheme.float_qparams:
        raise LoweringError(
            f"int8 operators cannot take the qparams of {what}",
            got=str(scheme),
            expected="at most 8 bits, one scale and zero point for the whole tensor",
        )
    return qparams
