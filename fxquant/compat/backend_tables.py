"""The tables of torch.ao's back ends, without the patterns of classes of ``torch.ao.nn``."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxquant.compat.backend_classes import (
    BackendConfig,
    BackendPatternConfig,
    DTypeConfig,
    DTypeWithConstraints,
    ObservationType,
)

_FRESH = ObservationType.OUTPUT_USE_DIFFERENT_OBSERVER_AS_INPUT
_SHARED = ObservationType.OUTPUT_SHARE_OBSERVER_WITH_INPUT
_NONE = ObservationType.INPUT_OUTPUT_NOT_OBSERVED

_RELUS = (nn.ReLU, F.relu)
_CONVOLUTIONS = (
    (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, F.conv1d, F.conv_transpose1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, F.conv2d, F.conv_transpose2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, F.conv3d, F.conv_transpose3d),
)
"""Of each number of dimensions: layer, transposed layer, batch norm, function, transposed function."""

_ARITHMETIC = (operator.add, torch.add, operator.mul, torch.mul)
_RECURRENT = (nn.GRUCell, nn.LSTMCell, nn.RNNCell, nn.LSTM, nn.GRU)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)

_DEFAULT = (
    *(nn.ELU, nn.LeakyReLU, nn.Hardswish, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.Dropout),
    *(nn.PReLU, F.elu, F.hardswish, F.leaky_relu, F.dropout),
)
_SHARING = (
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.Hardtanh, nn.Identity, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.PixelShuffle, nn.PixelUnshuffle),
    *(nn.ReLU, nn.ReLU6, torch.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.hardtanh),
    *(F.hardtanh_, F.interpolate, F.max_pool1d, F.max_pool2d, F.max_pool3d, F.pixel_shuffle, F.pixel_unshuffle),
    *(F.relu, F.relu6, torch.avg_pool1d, F.avg_pool2d, F.avg_pool3d, torch.clamp, torch.flatten, torch.mean),
    *(torch.narrow, torch.repeat_interleave, torch.transpose, torch.squeeze, torch.stack, torch.unsqueeze),
    *(operator.floordiv, "contiguous", "clamp", "detach", "detach_", "mean", "permute", "repeat"),
    *("repeat_interleave", "reshape", "resize_", "relu", "relu_", "squeeze", "squeeze_", "transpose", "unsqueeze"),
    *("unsqueeze_", "view"),
)
_FROM_ZERO = DTypeWithConstraints(torch.quint8, 0, 255, scale_exact_match=1 / 256, zero_point_exact_match=0)
_AROUND_ZERO = DTypeWithConstraints(torch.quint8, 0, 255, scale_exact_match=2 / 256, zero_point_exact_match=128)
_FIXED: dict[Any, DTypeWithConstraints] = {
    **dict.fromkeys((nn.Hardsigmoid, F.hardsigmoid, "hardsigmoid", "hardsigmoid_"), _FROM_ZERO),
    **dict.fromkeys((nn.Sigmoid, torch.sigmoid, "sigmoid", "sigmoid_", nn.Softmax), _FROM_ZERO),
    **dict.fromkeys((nn.Tanh, torch.tanh, "tanh", "tanh_"), _AROUND_ZERO),
}
"""Operators whose results have one range -> the qparams that they must have."""

_ACTIVATION, _WEIGHT = torch.quint8, torch.qint8
_STATIC = DTypeConfig(_ACTIVATION, _ACTIVATION, _WEIGHT, torch.float)
_VALUES = DTypeConfig(_ACTIVATION, _ACTIVATION)
_NORM = DTypeConfig(_ACTIVATION, _ACTIVATION, torch.float, torch.float)
_DYNAMIC = DTypeConfig(_ACTIVATION, torch.float, _WEIGHT, torch.float, is_dynamic=True)
_DYNAMIC_HALF = DTypeConfig(torch.float16, torch.float, torch.float16, torch.float, is_dynamic=True)
_TABLES = tuple(DTypeConfig(torch.float, torch.float, dtype) for dtype in (torch.quint8, torch.quint4x2))
_SIGNED_TABLE = DTypeConfig(torch.float, torch.float, torch.qint8)

_SIGNED = DTypeWithConstraints(torch.qint8, scale_min_lower_bound=2**-12)
_SIGNED_WEIGHT = DTypeWithConstraints(torch.qint8, -127, 127, scale_min_lower_bound=2**-12)
_XNNPACK = DTypeConfig(_SIGNED, _SIGNED, _SIGNED_WEIGHT, torch.float)
_XNNPACK_VALUES = DTypeConfig(_SIGNED, _SIGNED)

_TENSORRT = DTypeConfig(torch.qint8, torch.qint8, torch.qint8, torch.float)
_TENSORRT_VALUES = DTypeConfig(torch.qint8, torch.qint8)


@dataclass(frozen=True, slots=True)
class _DTypes:
    """The dtypes that a back end takes, by kinds of operators; a kind without any is not in its table."""

    layers: Sequence[DTypeConfig]
    dynamic: Sequence[DTypeConfig] = (_DYNAMIC, _DYNAMIC_HALF)
    """Of linear and recurrent layers, beside ``layers``."""
    arithmetic: Sequence[DTypeConfig] = (_VALUES,)
    values: Sequence[DTypeConfig] = (_VALUES,)
    """Of operators without weights."""
    cat: Sequence[DTypeConfig] = (_VALUES,)
    sharing: Sequence[DTypeConfig] = (_VALUES,)
    fixed: Sequence[DTypeConfig] = (_VALUES,)
    sizes: Sequence[DTypeConfig] = (_VALUES,)
    norms: Sequence[DTypeConfig] = ()
    embeddings: Sequence[DTypeConfig] = _TABLES


_SMALL_SCALES = (_XNNPACK_VALUES, _VALUES)
_BACKENDS: dict[str, _DTypes] = {
    "native": _DTypes((_STATIC,), norms=(_NORM,)),
    "x86": _DTypes((_STATIC,), arithmetic=(_STATIC,), fixed=(_STATIC,)),
    "fbgemm": _DTypes((_STATIC,)),
    "onednn": _DTypes((_STATIC,), dynamic=(_DYNAMIC,), sizes=(), norms=(_NORM,), embeddings=(_SIGNED_TABLE,)),
    "qnnpack": _DTypes(
        (_XNNPACK, _STATIC),
        arithmetic=_SMALL_SCALES,
        values=_SMALL_SCALES,
        cat=_SMALL_SCALES,
        sharing=_SMALL_SCALES,
        fixed=_SMALL_SCALES,
        sizes=(),
    ),
    "tensorrt": _DTypes(
        (_TENSORRT,),
        dynamic=(),
        arithmetic=(_TENSORRT,),
        values=(),
        cat=(_TENSORRT_VALUES,),
        sharing=(_TENSORRT_VALUES,),
        fixed=(),
        sizes=(_TENSORRT_VALUES,),
        embeddings=(),
    ),
}
"""Name of a back end -> its dtypes."""


def _entry(pattern: Any, dtypes: Iterable[DTypeConfig], observed: ObservationType = _FRESH) -> BackendPatternConfig:
    found = BackendPatternConfig(pattern).set_observation_type(observed)
    return found.set_dtype_configs([copy.deepcopy(each) for each in dtypes])


def _layer_patterns() -> Iterable[Any]:
    for layer, transposed, norm, function, transposed_function in _CONVOLUTIONS:
        yield from (layer, function, transposed, transposed_function, (layer, norm), (transposed, norm))
        for relu in _RELUS:
            yield from ((layer, relu), (function, relu), (layer, norm, relu))


def _linear_patterns() -> Iterable[Any]:
    yield from (nn.Linear, F.linear, (nn.Linear, nn.BatchNorm1d))
    yield from ((layer, relu) for layer in (nn.Linear, F.linear) for relu in _RELUS)


def _onednn_patterns() -> Iterable[Any]:
    for function in (nn.LeakyReLU, F.leaky_relu, nn.Tanh, torch.tanh):
        yield from ((nn.Linear, function), (F.linear, function))
    yield (nn.Linear, nn.BatchNorm1d, nn.LeakyReLU)


def _arithmetic_entries(dtypes: Iterable[DTypeConfig]) -> Iterable[BackendPatternConfig]:
    by_tensors = {0: _FRESH, 1: _SHARED, 2: _FRESH}
    for function in _ARITHMETIC:
        for pattern in (*((function, relu) for relu in (*_RELUS, torch.relu)), function):
            yield _entry(pattern, dtypes)._set_num_tensor_args_to_observation_type(dict(by_tensors))
    yield _entry(torch.matmul, dtypes)


def _fixed_entries(dtypes: Iterable[DTypeConfig]) -> Iterable[BackendPatternConfig]:
    for pattern, wanted in _FIXED.items():
        entry = _entry(pattern, dtypes)
        for found in entry.dtype_configs:
            for role in ("input", "output"):
                if getattr(found, f"{role}_dtype") == wanted.dtype:
                    setattr(found, f"{role}_dtype_with_constraints", copy.copy(wanted))
        yield entry


def _backend_config(name: str) -> BackendConfig:
    found = _BACKENDS[name]
    linear = (*found.layers, *found.dynamic)
    made = BackendConfig(name)
    made.set_backend_pattern_configs([_entry(pattern, found.layers) for pattern in _layer_patterns()])
    made.set_backend_pattern_configs([_entry(pattern, linear) for pattern in _linear_patterns()])
    made.set_backend_pattern_configs(list(_arithmetic_entries(found.arithmetic)))
    norm_relu = [(norm, relu) for norm in _BATCH_NORMS for relu in _RELUS]
    rows: tuple[tuple[Sequence[Any], Sequence[DTypeConfig], ObservationType], ...] = (
        ((torch.cat,), found.cat, _SHARED),
        ((torch.addmm,) if name == "tensorrt" else (), found.layers, _FRESH),
        ((*_DEFAULT, F.group_norm, F.instance_norm, *_BATCH_NORMS, *norm_relu), found.values, _FRESH),
        (_SHARING, found.sharing, _SHARED),
        (("shape", "size"), found.sizes, _NONE),
        ((nn.LayerNorm, F.layer_norm), found.norms, _FRESH),
        (_RECURRENT, found.dynamic, _FRESH),
        (_EMBEDDINGS, found.embeddings, _FRESH),
    )
    for patterns, dtypes, observed in rows:
        if dtypes:
            made.set_backend_pattern_configs([_entry(pattern, dtypes, observed) for pattern in patterns])
    made.set_backend_pattern_configs(list(_fixed_entries(found.fixed)) if found.fixed else [])
    if name == "onednn":
        made.set_backend_pattern_configs([_entry(pattern, linear) for pattern in _onednn_patterns()])
    for entry in made.configs:
        if _root_of(entry.pattern) is not None:
            entry.set_root_module(_root_of(entry.pattern))
    return made


def _root_of(pattern: Any) -> Any:
    """Return the layer that holds the weight, where torch.ao's tables name it."""
    layers = {layer for pair in _CONVOLUTIONS for layer in pair[:2]}
    transposed = {pair[1] for pair in _CONVOLUTIONS}
    if isinstance(pattern, tuple):
        named = pattern[0] in transposed or (pattern[0] in layers and len(pattern) == 3 and pattern[2] is F.relu)
        return pattern[0] if named else None
    return pattern if pattern in {nn.Linear, *layers, *_RECURRENT, *_EMBEDDINGS} else None


def _maker(name: str) -> Callable[[], BackendConfig]:
    made = partial(_backend_config, name)
    vars(made)["__doc__"] = f"Return the table of the back end {name!r}: patterns and the dtypes that each takes."
    return made


get_native_backend_config = _maker("native")
get_x86_backend_config = _maker("x86")
get_fbgemm_backend_config = _maker("fbgemm")
get_onednn_backend_config = _maker("onednn")
get_qnnpack_backend_config = _maker("qnnpack")
get_tensorrt_backend_config = _maker("tensorrt")


def get_native_backend_config_dict() -> dict[str, Any]:
    """Return the table of torch's own back ends in torch.ao's older form."""
    return get_native_backend_config().to_dict()


def get_tensorrt_backend_config_dict() -> dict[str, Any]:
    """Return the table of TensorRT in torch.ao's older form."""
    return get_tensorrt_backend_config().to_dict()
