"""Operators of core ATen, which programs hold after ``run_decompositions``: a row with the user's function for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F

Given = Mapping[str, Any]
"""The arguments of an overload under the names of its schema."""

Called = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and its arguments."""


def _convolution(g: Given) -> Called:
    stride, padding, dilation, output_padding = (
        tuple(g[name]) for name in ("stride", "padding", "dilation", "output_padding")
    )
    tensors, rank = (g["input"], g["weight"], g["bias"]), len(stride)
    if g["transposed"]:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        return function, (*tensors, stride, padding, output_padding, g["groups"], dilation)
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1], (*tensors, stride, padding, dilation, g["groups"])


def _batch_norm(g: Given) -> Called:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    return F.batch_norm, (*(g[name] for name in names), False, g["momentum"], g["eps"])


def _layer_norm(g: Given) -> Called:
    return F.layer_norm, (g["input"], tuple(g["normalized_shape"]), g["weight"], g["bias"], g["eps"])


def _group_norm(g: Given) -> Called:
    return F.group_norm, (g["input"], g["group"], g["weight"], g["bias"], g["eps"])


def _max_pool(g: Given, function: Callable[..., Any]) -> Called:
    names = ("kernel_size", "stride", "padding", "dilation")
    kernel, stride, padding, dilation = (tuple(g[name]) for name in names)
    return function, (g["self"], kernel, stride or None, padding, dilation, g["ceil_mode"])


ROWS: Mapping[str, Callable[[Given], Called]] = {
    "convolution": _convolution,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "max_pool2d_with_indices": lambda g: _max_pool(g, F.max_pool2d),
    "max_pool3d_with_indices": lambda g: _max_pool(g, F.max_pool3d),
    "_adaptive_avg_pool2d": lambda g: (F.adaptive_avg_pool2d, (g["self"], tuple(g["output_size"]))),
    "_adaptive_avg_pool3d": lambda g: (F.adaptive_avg_pool3d, (g["self"], tuple(g["output_size"]))),
    "_softmax": lambda g: (F.softmax, (g["self"], g["dim"])),
    "_log_softmax": lambda g: (F.log_softmax, (g["self"], g["dim"])),
}
"""Name of the operator -> the call of the function that it came from."""

GIVE_FIRST = frozenset(name for name in ROWS if "norm" in name or "with_indices" in name)
"""Operators that give several values, of which the function gives the first."""
