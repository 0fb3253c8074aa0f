"""Weights that a module rounds in its own way: AdaRound, which learns it for each value, or any with ``integers``."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fxquant.errors import SpecError
from fxquant.fake_quantize.base import refuse_script
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize, from_integers
from fxquant.graph.state_values import check_integers, check_qparams
from fxquant.observers.base import refuse_to_trace
from fxquant.observers.minmax import PerChannelMinMaxObserver
from fxquant.observers.qparams import middle
from fxquant.plan.spec import QParams

ZETA, GAMMA = 1.1, -0.1
"""How far the rectified sigmoid is stretched beyond [0, 1], so that it reaches both ends: arXiv:2004.10568, eq. 23."""

QPARAMS_WORDS = {"dtype", "qscheme", "reduce_range", "quant_min", "quant_max", "bits", "scheme"}
"""Arguments of an observer that say which qparams it chooses."""


class AdaRoundFakeQuantize(FakeQuantize):
    """Rounds each value of a weight down or up, as a learned variable ``V`` says.

    The integers are ``clamp(floor(w / scale) + h(V))``. While rounding is soft, ``h(V)`` is
    ``clamp(sigmoid(V) * (zeta - gamma) + gamma, 0, 1)``; once it is hard, ``[V >= 0]``. Observing ends at the first
    call after ``disable_observer``: ``V`` is then set so that soft rounding gives back the float weight. Only ``V``
    gets gradients.

    Parameter ``V``: of the weight's shape, empty until then. Buffers: as ``FakeQuantize``, and ``use_soft_rounding``
    uint8 [1].

    Args:
        observer: Class of the observer of the weight, or what its ``with_args`` gives; its qparams are symmetric.
        **observer_kwargs: Arguments of the observer; int8, symmetric, where neither these nor ``observer`` say more.

    Raises:
        SpecError: the qparams are not symmetric, or per group.

    Source:
        Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", arXiv:2004.10568, eq. 21-25.
    """

    V: nn.Parameter
    use_soft_rounding: Tensor

    def __init__(self, observer: Any = PerChannelMinMaxObserver, **observer_kwargs: Any) -> None:
        super().__init__(observer, **self._qparams_asked_for(observer, observer_kwargs), **observer_kwargs)
        if not self.scheme.symmetric or self.scheme.group_size is not None:
            raise SpecError("AdaRound learns with symmetric qparams without groups", got=str(self.scheme))
        self.zeta, self.gamma = ZETA, GAMMA
        self.V = nn.Parameter(torch.empty(0))
        self.add_switch("use_soft_rounding", True, torch.uint8)

    @staticmethod
    def _qparams_asked_for(observer: Any, observer_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return int8, symmetric, unless the user says anything of the qparams."""
        if QPARAMS_WORDS & {*getattr(observer, "arguments", ()), *observer_kwargs}:
            return {}
        kind = getattr(observer, "target", observer)
        per_channel = isinstance(kind, type) and issubclass(kind, PerChannelMinMaxObserver)
        return {"dtype": torch.int8, "qscheme": "per_channel_symmetric" if per_channel else "per_tensor_symmetric"}

    def forward(self, x: Tensor) -> Tensor:
        """Round ``x``, the float weight, always the same one. The result has its shape and dtype."""
        if self.is_on("observer_enabled"):
            self.observe(x.detach())
        elif self.V.numel() == 0 and x.numel():
            self.initialize(x)
        if not self.rounds():
            return x
        scale, zero_point, low, high = self._qparams(x)
        if self.V.numel() == 0:
            steps = torch.round(x.detach() * (1.0 / scale))
        else:
            steps = torch.floor(x.detach() * (1.0 / scale)) + self.rounding().to(scale.dtype)
        return (steps.clamp(low - zero_point, high - zero_point) * scale).to(x.dtype)

    def rounding(self) -> Tensor:
        """Return what is added to the floor of each value: soft, in [0, 1], with a gradient for ``V``; hard, 0 or 1."""
        if self.is_on("use_soft_rounding"):
            return (torch.sigmoid(self.V) * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)
        return (self.V >= 0).to(self.V.dtype)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set ``V`` so that soft rounding gives ``x`` back, as far as the quantization range reaches.

        Raises:
            CalibrationError: the observer has seen nothing.
        """
        refuse_to_trace("AdaRound sets V at the first call after observing", "run the module once before it is traced")
        self.calculate_qparams()  # says so if the weight was never seen
        scale, *_ = self._qparams(x)
        steps = x * (1.0 / scale)
        rest = steps - torch.floor(steps)
        # h(V) = rest, solved for V; 0 and 1 lie inside the stretched sigmoid, so this is finite
        inner = (rest - self.gamma) / (self.zeta - self.gamma)
        self.V = nn.Parameter(torch.log(inner / (1 - inner)), requires_grad=True)

    @torch.no_grad()
    def update_scale(self, x: Tensor) -> None:
        """Choose qparams for ``x`` anew, and set ``V`` for it."""
        self.observe(x.detach())
        self.initialize(x)

    def set_soft_rounding(self, enabled: bool = True) -> None:
        """Let values lie between two quantized values, by ``V``, or round them as its sign says."""
        self.set_switch("use_soft_rounding", enabled)

    def enable_weight_fake_quant(self) -> None:
        """End observing, and round hard: the weight is what a converted model stores."""
        self.disable_observer()
        self.enable_fake_quant()
        self.set_soft_rounding(False)

    def integers(self, x: Tensor) -> Tensor:
        """Return the quantized values of ``x``, rounded as ``V`` says: what a converted model stores, in its dtype."""
        scale, zero_point, low, high = self._qparams(x)
        steps = x.detach() * (1.0 / scale)
        steps = torch.round(steps) if self.V.numel() == 0 else torch.floor(steps) + (self.V.detach() >= 0)
        return (steps + zero_point).clamp(low, high).to(self.scheme.dtype)

    def __prepare_scriptable__(self) -> AdaRoundFakeQuantize:
        raise refuse_script(self, "torch.compile and torch.export take it; FakeQuantize can be scripted")

    def _qparams(self, x: Tensor) -> tuple[Tensor, int, int, int]:
        """Return the scale in a shape that broadcasts, float32, or float64 as the weight; zero point; limits."""
        axis = self.scheme.axis
        scale = self.scale.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        if axis is not None:
            scale = scale.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
        return scale, middle(self.scheme), self.quant_min, self.quant_max

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool, *args: Any
    ) -> None:
        """Take ``V`` of any shape: it has none before the weight was seen."""
        saved = state_dict.get(prefix + "V")
        if isinstance(saved, Tensor) and saved.shape != self.V.shape:
            self.V = nn.Parameter(torch.empty_like(saved, device=self.V.device))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *args)


AdaroundFakeQuantizer = AdaRoundFakeQuantize


@runtime_checkable
class LearnedRounding(Protocol):
    """A fake-quantize of weights that rounds in its own way: ``convert`` asks it for the integers."""

    def integers(self, x: Tensor) -> Tensor:
        """Return the quantized values of the weight ``x``, of its shape, for the qparams that ``qparams()`` names."""
        ...

    def qparams(self) -> QParams:
        """Return the qparams."""
        ...


class KnownIntegers(nn.Module):
    """The integers of one weight, however they were found, and their qparams; no gradient reaches them.

    Buffers: ``integers_of_weight``, of the shape of the weight and the dtype of the scheme; ``scale`` and
    ``zero_point`` as in ``qparams``.

    Args:
        integers: Of the weight.
        qparams: Scale and zero point that belong to them.
    """

    def __init__(self, integers: Tensor, qparams: QParams) -> None:
        super().__init__()
        self.scheme = qparams.scheme
        self.register_buffer("integers_of_weight", integers)
        self.register_buffer("scale", qparams.scale)
        self.register_buffer("zero_point", qparams.zero_point)

    def integers(self, x: Tensor) -> Tensor:
        """Return the integers, whatever the values of ``x`` are."""
        found: Any = self.integers_of_weight
        return found

    def qparams(self) -> QParams:
        """Return the qparams that the buffers hold."""
        scale: Any = self.scale
        zero_point: Any = self.zero_point
        return QParams(self.scheme, scale, zero_point)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        check_qparams(state_dict, prefix + "scale", prefix + "zero_point", self.scheme)
        check_integers(state_dict, prefix + "integers_of_weight", self.scheme.dtype, self.scheme)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


LEARNED_BIAS = "learned_bias"
"""Buffer of a layer in ``weight_layers``: the bias that ``convert`` takes; [C_out], of the dtype of the weight."""


def set_learned_bias(layer: nn.Module, bias: Tensor) -> None:
    """Let ``convert`` take this bias for the unit of the layer."""
    layer.register_buffer(LEARNED_BIAS, bias.detach().clone())


def learned_bias(layer: nn.Module | None) -> Tensor | None:
    """Return the bias that was learned; None where none was."""
    return None if layer is None else layer._buffers.get(LEARNED_BIAS)


class OwnIntegersFakeQuantize(nn.Module):
    """Simulates a weight by the integers of another module; differentiable, straight-through.

    Args:
        rounding: The module, with ``integers`` and ``qparams``.
    """

    def __init__(self, rounding: Any) -> None:
        super().__init__()
        self.rounding = rounding

    def forward(self, x: Tensor) -> Tensor:
        """Round ``x``, the float weight. The result has its shape and dtype, and the gradient of nearest rounding."""
        qparams = self.rounding.qparams()
        values = from_integers(self.rounding.integers(x), qparams.scale, qparams.zero_point, qparams.scheme).to(x.dtype)
        return _WithValues.apply(fake_quantize(x, qparams.scale, qparams.zero_point, qparams.scheme), values)


class _WithValues(torch.autograd.Function):
    """The second tensor, with the gradient going to the first."""

    generate_vmap_rule = True

    @staticmethod
    def forward(differentiable: Tensor, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
