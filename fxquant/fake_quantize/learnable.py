"""Fake-quantize whose scale and zero point are learned by gradient descent."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError, SpecError, check_type
from fxquant.fake_quantize.base import FakeQuantizeBase, refuse_script
from fxquant.graph.state_values import check_finite
from fxquant.kernels import fake_quantize_learnable_per_channel_affine, fake_quantize_learnable_per_tensor_affine
from fxquant.observers.base import ObserverBase, refuse_to_trace
from fxquant.observers.constructor import construct
from fxquant.observers.moving_average import MovingAverageMinMaxObserver
from fxquant.observers.qparams import SMALLEST_SCALE, middle
from fxquant.observers.range_observer import RangeObserver
from fxquant.plan.spec import QParams, check_number, is_whole

COMPILES_GRADIENTS = torch.__version__ >= "2.13"  # compared as versions are
"""Whether ``torch.compile`` gives scales per channel their gradients: torch 2.10 leaves them out, unsaid."""


class LearnableFakeQuantize(FakeQuantizeBase):
    """Simulates integer quantization with a ``scale`` and a ``zero_point`` that are parameters.

    Three states: *static estimate* (the first one: the observer chooses qparams), *static observation* (the observer
    measures, values pass), *parameter learning* (the qparams get gradients; the observer rests).

    Parameters ``scale`` and ``zero_point`` float32, [1] or [channel_len]. Buffers ``fake_quant_enabled``,
    ``static_enabled``, ``learning_enabled`` uint8 [1], ``eps`` float32 [1], below which no scale falls.

    Args:
        observer: Class of the observer that gives the first estimate, or what its ``with_args`` gives.
        quant_min, quant_max: Smallest and largest quantized value; ``quant_min <= 0 <= quant_max``.
        scale, zero_point: What the parameters begin with.
        channel_len: Number of channels; -1 for qparams of the whole tensor; None for as many as ``make_room`` sees
            (``prepare_qat`` shows it each weight), whatever the observer asks for.
        use_grad_scaling: Multiply the gradients of the qparams by ``1 / sqrt(numel * quant_max)``.
        **observer_kwargs: Arguments of the observer.

    Raises:
        SpecError: limits that cannot be; a number of channels that is none; ``use_grad_scaling`` with
            ``quant_max <= 0``.

    Source:
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153 (gradient scale: section 2.2); zero point:
        Bhalgat et al., "LSQ+", arXiv:2004.09576. Names as in torch.ao's ``_LearnableFakeQuantize``.
    """

    scale: nn.Parameter
    zero_point: nn.Parameter
    static_enabled: Tensor
    learning_enabled: Tensor
    eps: Tensor

    def __init__(
        self,
        observer: Any = MovingAverageMinMaxObserver,
        quant_min: int = 0,
        quant_max: int = 255,
        scale: float = 1.0,
        zero_point: float = 0.0,
        channel_len: int | None = -1,
        use_grad_scaling: bool = False,
        **observer_kwargs: Any,
    ) -> None:
        super().__init__()
        _check(quant_min, quant_max, channel_len, use_grad_scaling)
        check_type("scale", scale, (numbers.Real, Tensor), "a number")
        check_type("zero_point", zero_point, (numbers.Real, Tensor), "a number")
        made = construct(observer, {"quant_min": quant_min, "quant_max": quant_max, **observer_kwargs})
        self.activation_post_process: ObserverBase = made
        self.scheme = made.scheme
        if channel_len is not None and (self.scheme.axis is None) != (channel_len == -1):
            raise SpecError(
                "observer and channel_len contradict each other",
                got=f"channel_len={channel_len}, {self.scheme}",
                expected="the number of channels for qparams per channel, -1 for those per tensor",
            )
        self.quant_min, self.quant_max = quant_min, quant_max
        self.dtype, self.qscheme = made.dtype, getattr(made, "qscheme", None)
        self.ch_axis = -1 if self.scheme.axis is None else self.scheme.axis
        self.channel_len, self.use_grad_scaling = channel_len, use_grad_scaling
        self.bitwidth = int(math.log2(quant_max - quant_min + 1))
        channels = max(channel_len or 1, 1)
        first = float(middle(self.scheme)) if self.scheme.symmetric else float(zero_point)
        self.scale = nn.Parameter(torch.full((channels,), float(scale), dtype=torch.float32), requires_grad=False)
        self.zero_point = nn.Parameter(torch.full((channels,), first, dtype=torch.float32), requires_grad=False)
        self.add_switch("static_enabled", True, torch.uint8)
        self.add_switch("learning_enabled", False, torch.uint8)
        self.register_buffer("eps", torch.tensor([SMALLEST_SCALE], dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Fake-quantize ``x``, of any shape with the axis; the result has its shape, dtype and memory format."""
        if self.is_on("static_enabled") and x.numel():
            self._estimate(x.detach())
        if not self.rounds():
            return x
        self.keep_where_positive(x)
        exporting = torch.compiler.is_exporting()
        if not exporting:
            self._hold()
        factor = 1.0 / math.sqrt(max(x.numel(), 1) * self.quant_max) if self.use_grad_scaling else 1.0
        limits = (self.quant_min, self.quant_max)
        qparams: tuple[Tensor, Tensor] = (self.scale, self.zero_point)
        if exporting:  # an exported program does not change its parameters
            qparams = (self.scale.clamp(min=self.eps), self._held_zero_point())
        elif self.is_on(
            "static_enabled"
        ):  # the next call chooses anew, maybe before this one's gradients are asked for
            qparams = (self.scale.clone(), self.zero_point.clone())
        if self.scheme.axis is not None:
            if not (COMPILES_GRADIENTS or exporting):
                refuse_to_trace("this torch compiles no gradients of scales per channel", hint="torch 2.13 does")
            axis = self.scheme.axis
            return fake_quantize_learnable_per_channel_affine(x, *qparams, axis, *limits, factor)
        return fake_quantize_learnable_per_tensor_affine(x, *qparams, *limits, factor)

    def make_room(self, x: Tensor) -> None:
        self._make_room_for_qparams(x)
        if isinstance(self.activation_post_process, RangeObserver):
            self.activation_post_process.make_room(x)

    def _make_room_for_qparams(self, x: Tensor) -> None:
        axis = self.scheme.axis
        if self.channel_len is None and axis is not None:
            self._expand(x.shape[axis])

    def _expand(self, channels: int) -> None:
        self.channel_len = channels
        for name in ("scale", "zero_point"):
            first: nn.Parameter = getattr(self, name)
            expanded = first.detach().expand(channels).clone()
            setattr(self, name, nn.Parameter(expanded, requires_grad=first.requires_grad))

    @torch.no_grad()
    def _estimate(self, x: Tensor) -> None:
        """Measure a batch, and let the observer choose qparams."""
        self._make_room_for_qparams(x)
        self.activation_post_process(x)
        self.choose_grid()

    @torch.no_grad()
    def choose_grid(self) -> None:
        scale, zero_point = self.activation_post_process.calculate_qparams()
        if scale.shape != self.scale.shape:
            raise InputError(
                "channel_len is not the number of channels of what was observed",
                got=f"channel_len={self.scale.numel()}, {scale.numel()} channels",
                expected=f"channel_len={scale.numel()} for this tensor",
                hint="in a QConfigMapping, set_module_name gives each layer its own",
            )
        self.scale.copy_(scale)
        self.zero_point.copy_(zero_point)

    def _hold(self) -> None:
        """Keep the scale above ``eps``, and the zero point of symmetric qparams at the middle."""
        # .data, since a module that is called twice changes them between forward and backward, by nothing that matters
        self.scale.data.clamp_(min=self.eps)
        if self.scheme.symmetric:
            self.zero_point.data.fill_(float(middle(self.scheme)))

    def _held_zero_point(self) -> Tensor:
        return torch.full_like(self.zero_point, middle(self.scheme)) if self.scheme.symmetric else self.zero_point

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return the qparams in use: ``scale`` float32, ``zero_point`` int64, rounded, within the limits; detached."""
        self._hold()
        zero_point = self.zero_point.detach().round().clamp(self.quant_min, self.quant_max).long()
        return self.scale.detach().clone(), zero_point

    def qparams(self) -> QParams:
        """Return the qparams in use.

        Raises:
            CalibrationError: it is to be estimated, and nothing was seen.
        """
        if self.is_on("static_enabled"):
            self.activation_post_process.calculate_qparams()  # says so
        return super().qparams()

    @torch.no_grad()
    def initialize_lsq(self, x: Tensor) -> LearnableFakeQuantize:
        """Set the scale as LSQ does: ``2 * mean(|x|) / sqrt(quant_max)``, per channel if the qparams are.

        Args:
            x: The weight, or a first batch of activations.

        Source:
            arXiv:1902.08153, section 2.1.
        """
        self.scale.copy_(2 * self._mean(x.abs()) / math.sqrt(max(self.quant_max, 1)))
        self._hold()
        return self

    @torch.no_grad()
    def initialize_lsq_plus(self, x: Tensor) -> LearnableFakeQuantize:
        """Set the scale as LSQ+ does.

        Symmetric (weights): ``max(|mean - 3 std|, |mean + 3 std|) / 2**(bits - 1)``. Affine (activations): the smallest
        and largest value become the limits.

        Args:
            x: The weight, or a first batch of activations.

        Source:
            arXiv:2004.09576, section 3.3 (weights) and 3.2 (activations, here by the range).
        """
        if self.scheme.symmetric:
            mean = self._mean(x)
            spread = 3 * (self._mean(x.double() ** 2) - mean**2).clamp(min=0).sqrt()
            half = (self.quant_max - self.quant_min + 1) / 2
            self.scale.copy_(torch.maximum((mean - spread).abs(), (mean + spread).abs()) / half)
        else:
            self._estimate(x)
        self._hold()
        return self

    def _mean(self, x: Tensor) -> Tensor:
        axis = self.scheme.axis
        if axis is None:
            return x.double().mean().reshape(1)
        return x.double().mean([d for d in range(x.dim()) if d != axis % x.dim()])

    def enable_param_learning(self) -> LearnableFakeQuantize:
        """Learn the qparams; the observer rests."""
        return self.toggle_qparam_learning(True).toggle_fake_quant(True).toggle_observer_update(False)

    def enable_static_estimate(self) -> LearnableFakeQuantize:
        """Let the observer choose qparams in every call."""
        return self.toggle_qparam_learning(False).toggle_fake_quant(True).toggle_observer_update(True)

    def enable_static_observation(self) -> LearnableFakeQuantize:
        """Measure, and pass values on as they are."""
        return self.toggle_qparam_learning(False).toggle_fake_quant(False).toggle_observer_update(True)

    def toggle_observer_update(self, enabled: bool = True) -> LearnableFakeQuantize:
        """Switch the observer's choice of qparams on or off."""
        self.set_switch("static_enabled", enabled)
        self.set_switch("observer_enabled", enabled)
        return self

    def enable_observer(self, enabled: bool = True) -> None:
        """Switch the observer's choice of qparams on or off."""
        self.toggle_observer_update(enabled)

    def toggle_qparam_learning(self, enabled: bool = True) -> LearnableFakeQuantize:
        """Switch the gradients of scale and zero point on or off. A symmetric zero point stays where it is."""
        self.set_switch("learning_enabled", enabled)
        self.scale.requires_grad_(enabled)
        self.zero_point.requires_grad_(enabled)
        return self

    def toggle_fake_quant(self, enabled: bool = True) -> LearnableFakeQuantize:
        """Switch the rounding of values on or off."""
        self.set_switch("fake_quant_enabled", enabled)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Learn on if the saved module did; take as many channels as it had, if none were counted yet."""
        check_finite(state_dict, prefix + "scale", prefix + "zero_point")  # forward holds them within their bounds
        saved = state_dict.get(prefix + "scale")
        if isinstance(saved, Tensor) and self.channel_len is None and self.scheme.axis is not None:
            self._expand(saved.numel())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.scale.requires_grad_(self.is_on("learning_enabled"))
        self.zero_point.requires_grad_(self.is_on("learning_enabled"))

    def __prepare_scriptable__(self) -> LearnableFakeQuantize:
        raise refuse_script(self, "torch.compile and torch.export take it; FakeQuantize can be scripted")

    def observe_quant_params(self) -> None:
        """Print the qparams."""
        print(f"LearnableFakeQuantize Scale: {self.scale.detach()}")
        print(f"LearnableFakeQuantize Zero Point: {self.zero_point.detach()}")

    def extra_repr(self) -> str:
        names = ("fake_quant_enabled", "static_enabled", "learning_enabled")
        return ", ".join([str(self.scheme), *(f"{name}={self.is_on(name)}" for name in names)])


def enable_param_learning(module: nn.Module) -> None:
    """For ``model.apply``: every learnable fake-quantize module learns its qparams, from where it is now."""
    if isinstance(module, LearnableFakeQuantize):
        module.enable_param_learning()


def enable_static_estimate(module: nn.Module) -> None:
    """For ``model.apply``: the observer of every learnable fake-quantize module chooses its qparams, in every call."""
    if isinstance(module, LearnableFakeQuantize):
        module.enable_static_estimate()


_LearnableFakeQuantize = LearnableFakeQuantize


def _check(quant_min: int, quant_max: int, channel_len: int | None, use_grad_scaling: bool) -> None:
    for name, limit in (("quant_min", quant_min), ("quant_max", quant_max)):
        check_number(name, limit, is_whole, "a whole number")
    limits = f"quant_min={quant_min}, quant_max={quant_max}"
    if quant_min >= quant_max or quant_min > 0 or quant_max < 0:
        raise SpecError(
            "these limits leave nothing to learn", got=limits, expected="quant_min <= 0 <= quant_max, not equal"
        )
    if use_grad_scaling and quant_max <= 0:
        raise SpecError(
            "use_grad_scaling divides by the square root of quant_max", got=limits, expected="quant_max > 0"
        )
    if channel_len is None:
        return
    if isinstance(channel_len, bool) or not isinstance(channel_len, int) or (channel_len < 1 and channel_len != -1):
        raise SpecError(
            "channel_len is no number of channels", got=repr(channel_len), expected="1 or more, -1, or None"
        )
