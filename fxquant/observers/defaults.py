"""What is used where the user names no configuration."""

from __future__ import annotations

import torch

from fxquant.observers.minmax import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.qconfig import QConfig, QConfigMapping
from fxquant.registry import Registry

default_observer = MinMaxObserver.with_args(dtype=torch.uint8)
"""Activations: uint8, affine, per tensor."""

default_per_channel_weight_observer = PerChannelMinMaxObserver.with_args(
    ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric"
)
"""Weights: int8 in [-128, 127], symmetric, one scale per output channel."""

DEFAULT_QCONFIG = QConfig(activation=default_observer, weight=default_per_channel_weight_observer)

DEFAULT_QCONFIGS: Registry[QConfig] = Registry("default configuration")
"""Name of a back end -> what it likes best, for those that like something else than ``DEFAULT_QCONFIG``."""


def get_default_qconfig(backend: str = "cpu") -> QConfig:
    """How a back end quantizes by default: what ``DEFAULT_QCONFIGS`` has under its name, else ``DEFAULT_QCONFIG``.

    Any name will do, torch.ao's ``x86``, ``onednn``, ``fbgemm`` and ``qnnpack`` among them; whether there is such a
    back end is for ``prepare`` to say.
    """
    return DEFAULT_QCONFIGS.get(backend, DEFAULT_QCONFIG)


def get_default_qconfig_mapping(backend: str = "cpu") -> QConfigMapping:
    """A mapping that quantizes everything in the default way of a back end; add rules to it."""
    return QConfigMapping().set_global(get_default_qconfig(backend))
