"""Observers that measure nothing: one has fixed qparams (outputs of sigmoid, softmax, tanh), one says which dtype a
value shall have, and one leaves it in float."""

# No ``from __future__ import annotations`` here: TorchScript reads annotations as they stand.

import math
import numbers
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fxquant.errors import CalibrationError, SpecError, check_type
from fxquant.observers.base import ObserverBase
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.observers.scheme import make_scheme, torch_dtype, torch_qscheme
from fxquant.plan.spec import QParams, QScheme, is_whole


class FixedQParamsObserver(ObserverBase):
    """Always answers with the same qparams, whatever it sees.

    Buffers: ``scale`` float32 [1], ``zero_point`` int32 [1].

    Args:
        scale: Finite and > 0.
        zero_point: The integer that stands for 0.0, within the limits.
        dtype, qscheme, quant_min, quant_max, bits, scheme: Kind of the qparams, one scale for the whole tensor; see
            ``MinMaxObserver``.
        is_dynamic: Refused.

    Raises:
        SpecError: a scale or a zero point that cannot be; qparams that cannot exist, or are per channel.
    """

    scale: Tensor
    zero_point: Tensor
    scheme: QScheme

    def __init__(
        self,
        scale: float,
        zero_point: int,
        dtype: torch.dtype | None = None,
        qscheme: object | None = None,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_dynamic: bool = False,
        *,
        bits: int | None = None,
        scheme: QScheme | None = None,
    ) -> None:
        qparams = make_scheme(
            dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, bits=bits, scheme=scheme
        )
        if is_dynamic:
            raise SpecError("fixed qparams are not measured at run time", got="is_dynamic=True")
        check_type("scale", scale, (numbers.Real, Tensor), "a finite number above 0")
        check_type("zero_point", zero_point, (numbers.Real, Tensor), "a whole number")
        if not (math.isfinite(scale) and scale > 0):
            raise SpecError("a scale is a finite number above 0", got=scale)
        if not is_whole(zero_point) or not qparams.quant_min <= zero_point <= qparams.quant_max:
            raise SpecError(
                "the zero point lies outside the limits",
                got=zero_point,
                expected=f"a whole number from {qparams.quant_min} to {qparams.quant_max}",
            )
        super().__init__(qparams, dtype=torch_dtype(qparams) if dtype is None else dtype)
        self.qscheme = torch_qscheme(qparams)
        self.register_buffer("scale", torch.tensor([scale], dtype=torch.float32))
        self.register_buffer("zero_point", torch.tensor([zero_point], dtype=torch.int32))

    def update(self, x: Tensor) -> None:
        """Ignore ``x``, since the observer measures nothing."""

    def update_in_script(self, x: Tensor) -> None:
        """Ignore ``x``, in TorchScript too."""

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Ignore ``states``, since the observer measures nothing."""

    def qparams_in_script(self) -> tuple[Tensor, Tensor]:
        return self.scale, self.zero_point

    def qparams(self) -> QParams:
        return QParams(self.scheme, self.scale, self.zero_point)

    def extra_repr(self) -> str:
        return f"{self.scheme}, scale={float(self.scale):g}, zero_point={int(self.zero_point)}"


default_fixed_qparams_range_0to1_observer = FixedQParamsObserver.with_args(
    scale=1 / 256, zero_point=0, dtype=torch.uint8, quant_min=0, quant_max=255
)
"""For sigmoid, hardsigmoid, softmax: 0 to 255/256."""

default_fixed_qparams_range_neg1to1_observer = FixedQParamsObserver.with_args(
    scale=2 / 256, zero_point=128, dtype=torch.uint8, quant_min=0, quant_max=255
)
"""For tanh: -1 to 127/128."""


class _MeasuresNothing(ObserverBase):
    """Takes no notice of values, and has no qparams."""

    def update(self, x: Tensor) -> None:
        """Ignore ``x``, since the observer measures nothing."""

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Ignore ``states``, since the observer measures nothing."""

    def qparams(self) -> QParams:
        raise CalibrationError(
            f"a {type(self).__name__} measures nothing, so it has no scale and zero point",
            hint="use MinMaxObserver for what is to be quantized",
        )


class PlaceholderObserver(_MeasuresNothing):
    """Carries a dtype: with a float dtype, the value or weight is left as it is.

    Args:
        dtype: float32 by default. An integer dtype gives the observer a ``scheme``, yet never qparams.
        custom_op_name: Kept as ``custom_op``.
        compute_dtype: Older spelling of ``is_dynamic=True``.
        quant_min, quant_max, qscheme: Limits and kind of integer quantization, per tensor.
        eps: Kept.
        is_dynamic: The range is meant to be measured at run time.
        per: Of such a range: ``"tensor"``, or ``"token"`` for one range for each row of the input of linear layers.

    Raises:
        SpecError: ``per`` is neither, or is ``"token"`` without ``is_dynamic``.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        custom_op_name: str = "",
        compute_dtype: torch.dtype | None = None,
        quant_min: int | None = None,
        quant_max: int | None = None,
        qscheme: object | None = None,
        eps: float | None = None,
        is_dynamic: bool = False,
        per: str = "tensor",
    ) -> None:
        scheme = None
        if per not in ("tensor", "token"):
            raise SpecError("per is no part of a value", got=repr(per), expected="'tensor' or 'token'")
        if per == "token" and not (is_dynamic or compute_dtype is not None):
            raise SpecError(
                "a range for each token is measured at run time",
                got="per='token', is_dynamic=False",
                expected="is_dynamic=True",
            )
        if not dtype.is_floating_point:
            scheme = make_scheme(dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max)
        super().__init__(scheme, dtype=dtype, is_dynamic=is_dynamic or compute_dtype is not None)
        self.qscheme = torch_qscheme(scheme or QScheme())
        self.eps = SMALLEST_SCALE if eps is None else eps
        self.custom_op = custom_op_name
        self.per = per

    def extra_repr(self) -> str:
        per = ", per='token'" if self.per == "token" else ""
        return f"dtype={self.dtype}, is_dynamic={self.is_dynamic}{per}"


class NoopObserver(_MeasuresNothing):
    """Passes values on. Unlike a placeholder it never has a scheme, so its values stay in float.

    Args:
        dtype: Kept; float16 by default.
        custom_op_name: Kept as ``custom_op``.
    """

    def __init__(self, dtype: torch.dtype = torch.float16, custom_op_name: str = "") -> None:
        super().__init__(None, dtype=dtype)
        self.custom_op = custom_op_name
