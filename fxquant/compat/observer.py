"""The public names of ``torch.ao.quantization.observer``: classes, and constructors with arguments filled in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.compat.duck_typing import is_activation_post_process
from fxquant.compat.histogram import HistogramObserver
from fxquant.compat.not_offered import refusal_of
from fxquant.compat.observer_classes import (
    FixedQParamsObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    NoopObserver,
    ObserverBase,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    RecordingObserver,
    ReuseInputObserver,
    UniformQuantizationObserverBase,
)
from fxquant.errors import StateError

_is_activation_post_process = is_activation_post_process

default_observer = MinMaxObserver.with_args(quant_min=0, quant_max=127)
"""Activations: 7 bits, affine."""
default_placeholder_observer = PlaceholderObserver
"""Leaves values in float."""
default_debug_observer = RecordingObserver
"""Keeps values."""
default_weight_observer = MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
"""Weights: int8, symmetric, per tensor."""
weight_observer_range_neg_127_to_127 = MinMaxObserver.with_args(
    dtype=torch.qint8, qscheme=torch.per_tensor_symmetric, quant_min=-127, quant_max=127, eps=2**-12
)
"""Weights in [-127, 127], symmetric, per tensor."""
default_histogram_observer = HistogramObserver.with_args(quant_min=0, quant_max=127)
"""Activations by a histogram: 7 bits, affine."""
default_per_channel_weight_observer = PerChannelMinMaxObserver.with_args(
    dtype=torch.qint8, qscheme=torch.per_channel_symmetric
)
"""Weights: int8, symmetric, per output channel."""
per_channel_weight_observer_range_neg_127_to_127 = PerChannelMinMaxObserver.with_args(
    dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-127, quant_max=127, eps=2**-12
)
"""Weights in [-127, 127], symmetric, per output channel."""
default_dynamic_quant_observer = PlaceholderObserver.with_args(
    dtype=torch.quint8, quant_min=0, quant_max=255, is_dynamic=True
)
"""Activations with qparams that each call chooses."""
default_float_qparams_observer = PerChannelMinMaxObserver.with_args(
    dtype=torch.quint8, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0
)
"""Tables of embeddings: uint8, each row with a real zero point."""
default_float_qparams_observer_4bit = PerChannelMinMaxObserver.with_args(
    dtype=torch.quint4x2, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0
)
"""The same in 4 bits."""
default_fixed_qparams_range_neg1to1_observer = FixedQParamsObserver.with_args(
    scale=2.0 / 256.0, zero_point=128, dtype=torch.quint8, quant_min=0, quant_max=255
)
"""For tanh: -1 to 127/128."""
default_fixed_qparams_range_0to1_observer = FixedQParamsObserver.with_args(
    scale=1.0 / 256.0, zero_point=0, dtype=torch.quint8, quant_min=0, quant_max=255
)
"""For sigmoid, hardsigmoid, softmax: 0 to 255/256."""
default_symmetric_fixed_qparams_observer = default_fixed_qparams_range_neg1to1_observer
default_affine_fixed_qparams_observer = default_fixed_qparams_range_0to1_observer
default_reuse_input_observer = ReuseInputObserver
"""For operators that move values."""


def get_observer_state_dict(mod: nn.Module) -> dict[str, Tensor]:
    """Return the part of a model's state that observers hold."""
    return {name: value for name, value in mod.state_dict().items() if "activation_post_process" in name}


def load_observer_state_dict(mod: nn.Module, obs_dict: dict[str, Tensor]) -> None:
    """Load what ``get_observer_state_dict`` gave into the observers of a model.

    Raises:
        StateError: observers are missing, or unknown.
    """
    own = set(get_observer_state_dict(mod))
    if own != set(obs_dict):
        raise StateError(
            "the state is of other observers",
            got=", ".join(sorted(set(obs_dict) - own)[:5]) or "fewer observers",
            expected=", ".join(sorted(own - set(obs_dict))[:5]) or "no more than the model has",
        )
    mod.load_state_dict({**mod.state_dict(), **obs_dict})


__all__ = [
    "FixedQParamsObserver",
    "HistogramObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "NoopObserver",
    "ObserverBase",
    "PerChannelMinMaxObserver",
    "PlaceholderObserver",
    "RecordingObserver",
    "ReuseInputObserver",
    "UniformQuantizationObserverBase",
    "default_affine_fixed_qparams_observer",
    "default_debug_observer",
    "default_dynamic_quant_observer",
    "default_fixed_qparams_range_0to1_observer",
    "default_fixed_qparams_range_neg1to1_observer",
    "default_float_qparams_observer",
    "default_float_qparams_observer_4bit",
    "default_histogram_observer",
    "default_observer",
    "default_per_channel_weight_observer",
    "default_placeholder_observer",
    "default_reuse_input_observer",
    "default_symmetric_fixed_qparams_observer",
    "default_weight_observer",
    "get_observer_state_dict",
    "load_observer_state_dict",
    "per_channel_weight_observer_range_neg_127_to_127",
    "weight_observer_range_neg_127_to_127",
]

__getattr__ = refusal_of
