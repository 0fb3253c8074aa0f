"""``QConfigMapping`` under torch.ao's name: rules as data, which ``prepare_fx`` reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fxquant.compat.fake_quantize import FixedQParamsFakeQuantize, default_weight_fake_quant
from fxquant.compat.not_offered import refusal_of
from fxquant.compat.observer import (
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
    default_placeholder_observer,
    default_weight_observer,
)
from fxquant.compat.qconfig import (
    QConfig,
    default_quint8_weight_qconfig,
    default_reuse_input_qconfig,
    default_symmetric_qnnpack_qat_qconfig,
    default_symmetric_qnnpack_qconfig,
    get_default_qat_qconfig,
    get_default_qconfig,
)

_GLOBAL_DICT_KEY = ""
_OBJECT_TYPE_DICT_KEY = "object_type"
_MODULE_NAME_REGEX_DICT_KEY = "module_name_regex"
_MODULE_NAME_DICT_KEY = "module_name"
_MODULE_NAME_OBJECT_TYPE_ORDER_DICT_KEY = "module_name_object_type_order"

FIXED_QPARAMS: dict[Any, Any] = {
    **dict.fromkeys(
        (nn.Hardsigmoid, F.hardsigmoid, "hardsigmoid", "hardsigmoid_"), default_fixed_qparams_range_0to1_observer
    ),
    **dict.fromkeys(
        (nn.Sigmoid, torch.sigmoid, "sigmoid", "sigmoid_", nn.Softmax), default_fixed_qparams_range_0to1_observer
    ),
    **dict.fromkeys((nn.Tanh, torch.tanh, "tanh", "tanh_"), default_fixed_qparams_range_neg1to1_observer),
}
"""Operators whose results have known ends, and the observer that knows them."""

TRANSPOSED = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)


class QConfigMapping:
    """Rules that say how each part of a model is quantized, as torch.ao has them.

    A later kind wins over an earlier one: ``set_global``, ``set_object_type``, ``set_module_name_regex``,
    ``set_module_name``, ``set_module_name_object_type_order``. ``None`` leaves in float.
    """

    def __init__(self) -> None:
        self.global_qconfig: Any = None
        self.object_type_qconfigs: OrderedDict[Any, Any] = OrderedDict()
        self.module_name_regex_qconfigs: OrderedDict[str, Any] = OrderedDict()
        self.module_name_qconfigs: OrderedDict[str, Any] = OrderedDict()
        self.module_name_object_type_order_qconfigs: OrderedDict[tuple[str, Any, int], Any] = OrderedDict()

    def set_global(self, global_qconfig: Any) -> QConfigMapping:
        """Set what holds wherever no other rule does."""
        self.global_qconfig = global_qconfig
        return self

    def set_object_type(self, object_type: Callable[..., Any] | str, qconfig: Any) -> QConfigMapping:
        """Set what holds for a module class, a function, or a method by its name."""
        self.object_type_qconfigs[object_type] = qconfig
        return self

    def set_module_name_regex(self, module_name_regex: str, qconfig: Any) -> QConfigMapping:
        """Set what holds for modules whose path matches; the first that matches wins."""
        self.module_name_regex_qconfigs[module_name_regex] = qconfig
        return self

    def set_module_name(self, module_name: str, qconfig: Any) -> QConfigMapping:
        """Set what holds for the module of that path and all below it."""
        self.module_name_qconfigs[module_name] = qconfig
        return self

    def set_module_name_object_type_order(
        self, module_name: str, object_type: Callable[..., Any] | str, index: int, qconfig: Any
    ) -> QConfigMapping:
        """Set what holds for the ``index``-th use of a type directly in a module."""
        self.module_name_object_type_order_qconfigs[module_name, object_type, index] = qconfig
        return self

    def to_dict(self) -> dict[str, Any]:
        """Give plain lists of tuples, under the keys that torch.ao uses."""
        return {
            _GLOBAL_DICT_KEY: self.global_qconfig,
            _OBJECT_TYPE_DICT_KEY: list(self.object_type_qconfigs.items()),
            _MODULE_NAME_REGEX_DICT_KEY: list(self.module_name_regex_qconfigs.items()),
            _MODULE_NAME_DICT_KEY: list(self.module_name_qconfigs.items()),
            _MODULE_NAME_OBJECT_TYPE_ORDER_DICT_KEY: [
                (*key, value) for key, value in self.module_name_object_type_order_qconfigs.items()
            ],
        }

    @classmethod
    def from_dict(cls, qconfig_dict: Mapping[str, Any]) -> QConfigMapping:
        """Inverse of ``to_dict``; every key may be left out."""
        conf = cls().set_global(qconfig_dict.get(_GLOBAL_DICT_KEY))
        for key, setter in (
            (_OBJECT_TYPE_DICT_KEY, conf.set_object_type),
            (_MODULE_NAME_REGEX_DICT_KEY, conf.set_module_name_regex),
            (_MODULE_NAME_DICT_KEY, conf.set_module_name),
            (_MODULE_NAME_OBJECT_TYPE_ORDER_DICT_KEY, conf.set_module_name_object_type_order),
        ):
            set_rule: Any = setter
            for arguments in qconfig_dict.get(key, []):
                set_rule(*arguments)
        return conf

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for name, rules in vars(self).items():
            lines.append(f" {name}")
            lines += [f"  {key}: {value}" for key, value in rules.items()] if rules and isinstance(rules, dict) else []
            lines += [] if isinstance(rules, dict) and rules else [f"  {rules}"]
        return "\n".join([*lines, ")"])


def get_default_qconfig_mapping(backend: str = "x86", version: int = 0) -> QConfigMapping:
    """Return the rules that torch.ao quantizes with after training, for one of its back ends."""
    return _default_mapping(get_default_qconfig(backend, version), backend, is_qat=False)


def get_default_qat_qconfig_mapping(backend: str = "x86", version: int = 1) -> QConfigMapping:
    """Return the rules that torch.ao trains with, for one of its back ends."""
    return _default_mapping(get_default_qat_qconfig(backend, version), backend, is_qat=True)


def _default_mapping(qconfig: QConfig, backend: str, *, is_qat: bool) -> QConfigMapping:
    weight = default_weight_fake_quant if is_qat else default_weight_observer
    transposed = QConfig(qconfig.activation, weight) if backend in ("fbgemm", "x86") else qconfig
    norm = QConfig(qconfig.activation, default_placeholder_observer)
    mapping = QConfigMapping().set_global(qconfig).set_object_type("reshape", default_reuse_input_qconfig)
    rules: dict[Any, QConfig] = {**dict.fromkeys(TRANSPOSED, transposed), F.layer_norm: norm, nn.LayerNorm: norm}
    for kind, rule in rules.items():
        mapping.set_object_type(kind, rule)
    mapping.set_object_type(nn.PReLU, default_quint8_weight_qconfig)
    for target, observer in FIXED_QPARAMS.items():
        activation = FixedQParamsFakeQuantize.with_args(observer=observer) if is_qat else observer
        mapping.set_object_type(target, QConfig(activation, weight))
    return mapping


def _get_symmetric_qnnpack_qconfig_mapping() -> QConfigMapping:
    return _with_one_qconfig(get_default_qconfig_mapping("qnnpack"), default_symmetric_qnnpack_qconfig)


def _get_symmetric_qnnpack_qat_qconfig_mapping() -> QConfigMapping:
    return _with_one_qconfig(get_default_qat_qconfig_mapping("qnnpack"), default_symmetric_qnnpack_qat_qconfig)


def _with_one_qconfig(mapping: QConfigMapping, qconfig: QConfig) -> QConfigMapping:
    mapping.set_global(qconfig)
    for target in mapping.object_type_qconfigs:
        if target not in FIXED_QPARAMS:
            mapping.set_object_type(target, qconfig)
    return mapping


__getattr__ = refusal_of
