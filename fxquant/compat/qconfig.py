"""The public names of ``torch.ao.quantization.qconfig``: pairs of constructors, and those that torch.ao names."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import nn

from fxquant.compat.fake_quantize import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    default_dynamic_fake_quant,
    default_embedding_fake_quant,
    default_embedding_fake_quant_4bit,
    default_fake_quant,
    default_fused_act_fake_quant,
    default_fused_per_channel_wt_fake_quant,
    default_fused_wt_fake_quant,
    default_per_channel_weight_fake_quant,
    default_weight_fake_quant,
    fused_per_channel_wt_fake_quant_range_neg_127_to_127,
    fused_wt_fake_quant_range_neg_127_to_127,
)
from fxquant.compat.not_offered import refusal_of, refuse_observers
from fxquant.compat.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    NoopObserver,
    PlaceholderObserver,
    default_debug_observer,
    default_dynamic_quant_observer,
    default_float_qparams_observer,
    default_float_qparams_observer_4bit,
    default_observer,
    default_per_channel_weight_observer,
    default_placeholder_observer,
    default_reuse_input_observer,
    default_weight_observer,
    per_channel_weight_observer_range_neg_127_to_127,
    weight_observer_range_neg_127_to_127,
)


class QConfig(namedtuple("QConfig", ["activation", "weight"])):
    """Constructors of the observers of values and of the weight of an operator, as torch.ao has it."""

    __slots__ = ()

    def __new__(cls, activation: Any, weight: Any) -> QConfig:
        """Make one.

        Raises:
            ValueError: an observer was given, and no constructor of one.
        """
        refuse_observers("QConfig", activation, weight)
        return super().__new__(cls, activation, weight)


class QConfigDynamic(namedtuple("QConfigDynamic", ["activation", "weight"])):
    """The former name of a ``QConfig`` whose ranges each call measures."""

    __slots__ = ()

    def __new__(cls, activation: Any = nn.Identity, weight: Any = nn.Identity) -> QConfigDynamic:
        """Make one.

        Raises:
            ValueError: an observer was given, and no constructor of one.
        """
        if isinstance(weight, nn.Module):
            raise ValueError("QConfigDynamic received observer instance, please pass observer class instead.")
        return super().__new__(cls, activation, weight)


QConfigAny = QConfig | None

default_qconfig = QConfig(activation=default_observer, weight=default_weight_observer)
default_debug_qconfig = QConfig(weight=default_weight_observer, activation=default_debug_observer)
default_per_channel_qconfig = QConfig(activation=default_observer, weight=default_per_channel_weight_observer)
default_dynamic_qconfig = QConfig(activation=default_dynamic_quant_observer, weight=default_weight_observer)
float16_dynamic_qconfig = QConfig(
    activation=PlaceholderObserver.with_args(dtype=torch.float16, is_dynamic=True),
    weight=PlaceholderObserver.with_args(dtype=torch.float16),
)
float16_static_qconfig = QConfig(
    activation=PlaceholderObserver.with_args(dtype=torch.float16),
    weight=PlaceholderObserver.with_args(dtype=torch.float16),
)
per_channel_dynamic_qconfig = QConfig(
    activation=default_dynamic_quant_observer, weight=default_per_channel_weight_observer
)
float_qparams_weight_only_qconfig = QConfig(
    activation=default_placeholder_observer, weight=default_float_qparams_observer
)
float_qparams_weight_only_qconfig_4bit = QConfig(
    activation=default_placeholder_observer, weight=default_float_qparams_observer_4bit
)
default_qat_qconfig = QConfig(activation=default_fake_quant, weight=default_weight_fake_quant)
default_dynamic_qat_qconfig = QConfig(activation=default_dynamic_fake_quant, weight=default_weight_fake_quant)
default_weight_only_qconfig = QConfig(activation=nn.Identity, weight=default_weight_fake_quant)
default_activation_only_qconfig = QConfig(activation=default_fake_quant, weight=nn.Identity)
default_qat_qconfig_v2 = QConfig(activation=default_fused_act_fake_quant, weight=default_fused_wt_fake_quant)
default_reuse_input_qconfig = QConfig(activation=default_reuse_input_observer, weight=NoopObserver)
_signed = HistogramObserver.with_args(dtype=torch.qint8, reduce_range=False, eps=2**-12)
default_symmetric_qnnpack_qconfig = QConfig(activation=_signed, weight=weight_observer_range_neg_127_to_127)
default_per_channel_symmetric_qnnpack_qconfig = QConfig(
    activation=_signed, weight=per_channel_weight_observer_range_neg_127_to_127
)
default_embedding_qat_qconfig = QConfig(
    activation=NoopObserver.with_args(dtype=torch.float32), weight=default_embedding_fake_quant
)
default_embedding_qat_qconfig_4bit = QConfig(
    activation=NoopObserver.with_args(dtype=torch.float32), weight=default_embedding_fake_quant_4bit
)
default_quint8_weight_qconfig = QConfig(activation=HistogramObserver, weight=MinMaxObserver)
_signed_in_training = FusedMovingAvgObsFakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver,
    quant_min=-128,
    quant_max=127,
    dtype=torch.qint8,
    reduce_range=False,
    eps=2**-12,
)
default_symmetric_qnnpack_qat_qconfig = QConfig(
    activation=_signed_in_training, weight=fused_wt_fake_quant_range_neg_127_to_127
)
default_per_channel_symmetric_qnnpack_qat_qconfig = QConfig(
    activation=_signed_in_training, weight=fused_per_channel_wt_fake_quant_range_neg_127_to_127
)

_BACKENDS = ("fbgemm", "x86", "qnnpack", "onednn")


def get_default_qconfig(backend: str = "x86", version: int = 0) -> QConfig:
    """Return the observers that torch.ao uses for one of its back ends.

    Raises:
        AssertionError: the back end or the version is unknown.
    """
    _check(backend, version, (0,), "get_default_qconfig")
    reduced = backend in ("fbgemm", "x86")
    weight = default_weight_observer if backend == "qnnpack" else default_per_channel_weight_observer
    return QConfig(activation=HistogramObserver.with_args(reduce_range=reduced), weight=weight)


def get_default_qat_qconfig(backend: str = "x86", version: int = 1) -> QConfig:
    """Return the fake-quantize modules that torch.ao trains with for one of its back ends.

    Raises:
        AssertionError: the back end or the version is unknown.
    """
    _check(backend, version, (0, 1), "get_default_qat_qconfig")
    arguments: dict[str, Any] = {"observer": MovingAverageMinMaxObserver, "quant_min": 0, "quant_max": 255}
    if backend != "onednn":
        arguments["reduce_range"] = backend in ("fbgemm", "x86")
    if version == 0:
        plain = default_weight_fake_quant if backend == "qnnpack" else default_per_channel_weight_fake_quant
        return QConfig(activation=FakeQuantize.with_args(**arguments), weight=plain)
    fused = default_fused_wt_fake_quant if backend == "qnnpack" else default_fused_per_channel_wt_fake_quant
    return QConfig(activation=FusedMovingAvgObsFakeQuantize.with_args(**arguments), weight=fused)


def _check(backend: str, version: int, versions: tuple[int, ...], name: str) -> None:
    if backend not in _BACKENDS:
        raise AssertionError(f"backend: {backend} not supported. backend must be one of {list(_BACKENDS)}")
    if version not in versions:
        raise AssertionError(f"Version number: {version} in {name} is not supported.")


def qconfig_equals(q1: Any, q2: Any) -> bool:
    """Tell whether two configurations hold constructors of the same observers with the same arguments."""
    if q1 is None or q2 is None:
        return q1 is q2
    return bool(_content(q1.activation) == _content(q2.activation) and _content(q1.weight) == _content(q2.weight))


def _content(constructor: Any) -> Any:
    inner = getattr(constructor, "p", constructor)
    return (inner.func, inner.args, inner.keywords) if hasattr(inner, "keywords") else inner


__getattr__ = refusal_of
