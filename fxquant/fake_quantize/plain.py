"""Fake-quantize with any observer: measure, choose qparams, quantize and dequantize."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.fake_quantize.base import FakeQuantizeBase
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.graph.query import has_hooks
from fxquant.graph.state_values import check_qparams
from fxquant.kernels import fake_quantize_per_tensor_affine
from fxquant.kernels.fake_quantize.fake_quantize_folded import fake_quantize_folded
from fxquant.observers.base import ObserverBase, refuse_to_trace
from fxquant.observers.constructor import construct
from fxquant.observers.moving_average import MovingAverageMinMaxObserver
from fxquant.observers.range_observer import FIRST_BATCH, RangeObserver
from fxquant.plan.spec import QParams, QScheme


def _as_it_is(x: Tensor, factor: Tensor | None) -> Tensor:
    return x


def _round(scale: Tensor, zero_point: Tensor, scheme: QScheme, x: Tensor, factor: Tensor | None) -> Tensor:
    if factor is None:
        return fake_quantize(x, scale, zero_point, scheme)
    return fake_quantize_folded(x, factor, scale, zero_point, scheme.quant_min, scheme.quant_max)


class FakeQuantize(FakeQuantizeBase):
    """Simulates integer quantization while training.

    With the observer on, every batch is measured and qparams are chosen anew; with fake quantization on, the result is
    ``(clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max) - zero_point) * scale``, with a straight-through
    gradient. Both are on at first.

    Buffers: ``scale`` float32 and ``zero_point`` int32 (float32 for float qparams), [1] per tensor, [C] per channel,
    [C, groups] per group; ``fake_quant_enabled`` and ``observer_enabled`` uint8 [1]. The observer is the submodule
    ``activation_post_process``. A state dict of ``torch.ao.quantization.FakeQuantize`` can be loaded.

    Args:
        observer: Class of the observer, or what its ``with_args`` gives.
        quant_min, quant_max: Inclusive limits of the quantized values. None: those of the observer.
        is_dynamic: The qparams are chosen anew in every call.
        **observer_kwargs: Arguments of the observer.

    Raises:
        SpecError: the observer does not take an argument, or the limits do not fit its dtype.

    Source:
        Jacob et al., arXiv:1712.05877, section 3. Names, arguments and state as in ``torch.ao.quantization``.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(
        self,
        observer: Any = MovingAverageMinMaxObserver,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_dynamic: bool = False,
        **observer_kwargs: Any,
    ) -> None:
        super().__init__()
        limits = {"quant_min": quant_min, "quant_max": quant_max}
        observer_kwargs |= {name: limit for name, limit in limits.items() if limit is not None}
        made = construct(observer, observer_kwargs | ({"is_dynamic": True} if is_dynamic else {}))
        self.activation_post_process: ObserverBase = made
        self.scheme = made.scheme
        self.quant_min, self.quant_max = self.scheme.quant_min, self.scheme.quant_max
        self.is_dynamic = made.is_dynamic
        self.dtype = made.dtype
        self.qscheme = getattr(made, "qscheme", None)
        self.ch_axis = -1 if self.scheme.axis is None else self.scheme.axis
        self.is_per_channel = self.scheme.axis is not None
        self.is_grouped = self.scheme.group_size is not None
        zero_point_dtype = torch.float32 if self.scheme.float_qparams else torch.int32
        self.register_buffer("scale", torch.tensor([1.0], dtype=torch.float32))
        self.register_buffer("zero_point", torch.tensor([0], dtype=zero_point_dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Fake-quantize ``x``, of any shape with the axis; the result has its shape, dtype and memory format."""
        if torch.jit.is_scripting():
            if self.observer_enabled[0] == 1 and x.numel() > 0:
                self.observe(x.detach())
            if self.fake_quant_enabled[0] == 1:
                return self._rounded_in_script(x)
        else:
            if self.is_on("observer_enabled") and x.numel():
                self.observe(x.detach())
            if self.rounds():
                self.keep_where_positive(x)
                qparams = self.scale, self.zero_point
                if self.is_per_channel:
                    return fake_quantize(x, *qparams, self.scheme)
                return fake_quantize_per_tensor_affine(x, *qparams, self.quant_min, self.quant_max)
        return x

    def rounds_plainly(self, factor: Tensor | None, axis: int) -> bool:
        """Tell whether ``rounding_of`` can do what ``forward`` does, with a factor per index of dimension ``axis``."""
        if type(self).forward is not FakeQuantize.forward or has_hooks(self):
            return False
        return factor is None or (axis == 0 and self.scheme.axis in (None, 0) and not self.scheme.float_qparams)

    def rounding_of(self, x: Tensor, factor: Tensor | None = None) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return what ``forward`` does to a weight after it has observed it: a function of it and the factor.

        The function keeps the qparams as they are now, so that it gives the same whenever it is called.

        Args:
            x: The weight [C, ...].
            factor: What it is multiplied by before it is observed and rounded, and then divided by: [C].
        """
        if self.is_on("observer_enabled") and x.numel():
            seen = x.detach()
            self.observe(seen if factor is None else seen * factor.detach().reshape(-1, *[1] * (x.dim() - 1)))
        if not self.rounds():
            return _as_it_is
        return partial(_round, self.scale.clone(), self.zero_point.clone(), self.scheme)

    def _rounded_in_script(self, x: Tensor) -> Tensor:
        """Do what ``fake_quantize`` does, for TorchScript."""
        if self.is_grouped:
            raise RuntimeError("TorchScript knows no qparams per group")
        if not self.is_per_channel:
            return torch.ops.fxquant.fake_quantize_per_tensor_affine(
                x, self.scale, self.zero_point, self.quant_min, self.quant_max
            )
        axis = self.ch_axis % x.dim()
        if self.zero_point.is_floating_point():  # ours is no operator; torch's gives the same bits
            return torch.fake_quantize_per_channel_affine(
                x, self.scale, self.zero_point, axis, self.quant_min, self.quant_max
            )
        return torch.ops.fxquant.fake_quantize_per_channel_affine(
            x, self.scale, self.zero_point, axis, self.quant_min, self.quant_max
        )

    def observe(self, x: Tensor) -> None:
        """Measure a batch, and choose qparams anew."""
        self.observe_by_observer(x)

    def observe_by_observer(self, x: Tensor) -> None:
        """Do the same, by the observer and nothing else."""
        self.activation_post_process(x)
        self.choose_grid()

    def choose_grid(self) -> None:
        scale, zero_point = self.calculate_qparams()
        self.set_qparams(scale, zero_point)

    def make_room(self, x: Tensor) -> None:
        observer = self.activation_post_process
        if isinstance(observer, RangeObserver):
            shape = observer.make_room(x)
            self.set_qparams(*(torch.full(shape or (1,), value, device=self.scale.device) for value in (1.0, 0)))

    def set_qparams(self, scale: Tensor, zero_point: Tensor) -> None:
        """Copy qparams into the buffers, which keep their dtype and device."""
        own_scale, own_zero_point = self.scale, self.zero_point
        if own_scale.shape != scale.shape:
            if not torch.jit.is_scripting():
                refuse_to_trace(*FIRST_BATCH)
            own_scale.resize_(scale.shape)
            own_zero_point.resize_(scale.shape)
        own_scale.copy_(scale)
        own_zero_point.copy_(zero_point)

    @torch.jit.export
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return ``(scale, zero_point)`` for what the observer saw.

        Raises:
            CalibrationError: it has seen nothing.
        """
        return self.activation_post_process.calculate_qparams()

    def qparams(self) -> QParams:
        """Return the qparams in use, as the buffers have them now.

        Raises:
            CalibrationError: nothing has chosen one.
        """
        if self.scale.numel() == 1 and self.scale.item() == 1.0 and not self.zero_point.any():
            self.calculate_qparams()  # says so, unless these are the qparams that were chosen
        return QParams(self.scheme, self.scale.detach(), self.zero_point.detach())

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool, *args: Any
    ) -> None:
        """Take qparams of any number of channels."""
        check_qparams(state_dict, prefix + "scale", prefix + "zero_point", self.scheme)
        for name in ("scale", "zero_point"):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and saved.shape != self.scale.shape and self.is_per_channel:
                self.scale.resize_(saved.shape).fill_(1)  # both, since a state need not hold both
                self.zero_point.resize_(saved.shape).zero_()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *args)

    def __prepare_scriptable__(self) -> "FakeQuantize":
        """Prepare for ``torch.jit.script``, which calls this first.

        Raises:
            SpecError: it would measure by an observer that cannot in TorchScript.
        """
        observer = type(self.activation_post_process)
        if self.is_on("observer_enabled") and observer.update_in_script is ObserverBase.update_in_script:
            raise SpecError(
                "this observer cannot measure in TorchScript",
                got=observer.__name__,
                expected="MinMaxObserver, MovingAverageMinMaxObserver, theirs per channel, or fixed qparams",
                hint="with disable_observer() first, any calibrated fake-quantize module can be scripted",
            )
        return self

    def extra_repr(self) -> str:
        switches = ", ".join(f"{name}={self.is_on(name)}" for name in ("fake_quant_enabled", "observer_enabled"))
        if self.scale.numel() == 1:
            qparams = f"scale={self.scale.item():.4g}, zero_point={self.zero_point.item()}"
        else:
            qparams = f"scale=[{self.scale.min().item():.4g}, {self.scale.max().item():.4g}]"
        return f"{self.scheme}, {switches}, {qparams}"
