"""Defines the observers and configurations that are used where the user names none."""

from __future__ import annotations

import torch
from torch import nn

from fxquant.observers.fixed import PlaceholderObserver
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.minmax import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.spec import check_number, is_whole
from fxquant.registry import Registry

default_observer = HistogramObserver.with_args(dtype=torch.uint8)
"""Activations: uint8, affine, per tensor, the range of least squared error.

On MobileNetV2 with its ImageNet weights, over six calibration sets: 15.6 dB against 14.6 of min-max, and 146 answers of
156 against 148, within what such a set can tell; on a vision transformer of random weights, 29 dB against 27.5.
``MSEObserver``, whose ends shrink alike, lies between: 15.4 and 28 dB."""

default_output_observer = MinMaxObserver.with_args(dtype=torch.uint8)
"""For ``QConfig(output=...)``: clipping the largest logits costs answers, whatever it saves in squared error."""

default_per_channel_weight_observer = PerChannelMinMaxObserver.with_args(
    ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric"
)
"""Weights: int8 in [-128, 127], symmetric, one scale per output channel."""

default_placeholder_observer = PlaceholderObserver
"""Leaves values in float."""

default_dynamic_quant_observer = PlaceholderObserver.with_args(
    dtype=torch.uint8, quant_min=0, quant_max=255, is_dynamic=True
)
"""Activations: uint8, affine, per tensor, with qparams that each call chooses."""

default_per_token_quant_observer = default_dynamic_quant_observer.with_args(per="token")
"""The same with a scale and a zero point for each row of the input."""

default_float_qparams_observer = PerChannelMinMaxObserver.with_args(
    ch_axis=0, dtype=torch.uint8, qscheme="per_channel_affine_float_qparams"
)
"""Tables of embeddings: uint8, each row with qparams of its own, whose range need not hold 0."""

default_float_qparams_observer_4bit = default_float_qparams_observer.with_args(bits=4)
"""The same in 4 bits, two values in a byte."""

float_qparams_weight_only_qconfig = QConfig(
    activation=default_placeholder_observer, weight=default_float_qparams_observer
)
"""For embeddings, whose result stays float: a table of 8 bits."""

float_qparams_weight_only_qconfig_4bit = QConfig(
    activation=default_placeholder_observer, weight=default_float_qparams_observer_4bit
)
"""For embeddings: a table of 4 bits."""

default_dynamic_qconfig = QConfig(activation=default_dynamic_quant_observer, weight=default_per_channel_weight_observer)
"""For linear and recurrent layers between floats: nothing is measured beforehand, so there is nothing to calibrate."""

default_per_token_qconfig = QConfig(
    activation=default_per_token_quant_observer, weight=default_per_channel_weight_observer
)
"""For linear layers between floats: each row of the input has its own range, so that a token with large values costs
the others nothing. Source: Yao et al., "ZeroQuant", arXiv:2206.01861, section 4.1."""


def weight_only_qconfig(bits: int = 4, group_size: int | None = 32) -> QConfig:
    """Return the configuration of linear layers that multiply floats by a weight of few bits; all else stays float.

    Nothing is calibrated. On the CPU, weights of up to 4 bits lie two to a byte.

    Args:
        bits: Of a quantized weight, 2 to 16; on the CPU those of more than 8 become a float matrix in each call.
        group_size: Values of a row that share a scale. The input features are a multiple of it. None: a whole row.

    Raises:
        SpecError: ``bits`` is no such number.
    """
    check_number("bits", bits, is_whole, "2 to 16")
    weight = default_per_channel_weight_observer.with_args(
        bits=bits, dtype=torch.int8 if bits <= 8 else torch.int16, group_size=group_size
    )
    return QConfig(activation=default_placeholder_observer, weight=weight)


DEFAULT_QCONFIG = QConfig(
    activation=default_observer,
    weight=default_per_channel_weight_observer,
    correct_bias=True,
)

DEFAULT_QCONFIGS: Registry[QConfig] = Registry("default configuration")
"""Name of a back end -> what it likes best, for those that like something else than ``DEFAULT_QCONFIG``."""


def get_default_qconfig(backend: str = "cpu") -> QConfig:
    """Return the configuration of a back end: what ``DEFAULT_QCONFIGS`` has under its name, else ``DEFAULT_QCONFIG``.

    Any name will do, torch.ao's ``x86``, ``onednn``, ``fbgemm`` and ``qnnpack`` among them; whether there is such a
    back end is for ``prepare`` to say.
    """
    return DEFAULT_QCONFIGS.get(backend, DEFAULT_QCONFIG)


def get_default_qconfig_mapping(backend: str = "cpu") -> QConfigMapping:
    """Return a mapping that quantizes everything in the default way of a back end; add rules to it.

    Tables of embeddings have rules of their own: ``float_qparams_weight_only_qconfig``.
    """
    mapping = QConfigMapping().set_global(get_default_qconfig(backend))
    for table in (nn.Embedding, nn.EmbeddingBag):
        mapping.set_object_type(table, float_qparams_weight_only_qconfig)
    return mapping
