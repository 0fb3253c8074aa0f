"""The operator table: for each operator its canonical function, its arguments, and every other way to spell it."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fxquant.graph.operators.families import ELEMENTARY, PRODUCTS, Function, Operator, unary


def _stride_is_kernel_size(arguments: dict[str, Any]) -> None:
    if arguments["stride"] in (None, (), []):
        arguments["stride"] = arguments["kernel_size"]


def _dims_as_tuple(arguments: dict[str, Any]) -> None:
    dims = arguments["dim"]
    if dims is not None:
        arguments["dim"] = tuple(dims) if isinstance(dims, (list, tuple)) else (dims,)


def _max_pool(dimensions: int, function: Function, module: type[nn.Module]) -> Operator:
    return Operator(
        target=function,
        required=("input", "kernel_size"),
        defaults={"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False},
        fixed={"return_indices": False},
        functions=(getattr(torch, f"max_pool{dimensions}d"),),
        modules=(module,),
        finish=_stride_is_kernel_size,
    )


def _avg_pool(function: Function, module: type[nn.Module], **divisor: Any) -> Operator:
    return Operator(
        target=function,
        required=("input", "kernel_size"),
        defaults={"stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True, **divisor},
        modules=(module,),
        finish=_stride_is_kernel_size,
    )


def _adaptive(function: Function, module: type[nn.Module], *functions: Function, **fixed: Any) -> Operator:
    return Operator(
        target=function, required=("input", "output_size"), fixed=fixed, functions=functions, modules=(module,)
    )


def _conv(function: Function) -> Operator:
    defaults = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return Operator(target=function, required=("input", "weight"), defaults=defaults)


def _conv_transpose(function: Function) -> Operator:
    defaults = {"bias": None, "stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    return Operator(target=function, required=("input", "weight"), defaults=defaults)


def _reduction(name: str) -> Operator:
    return Operator(
        target=getattr(torch, name),
        defaults={"dim": None, "keepdim": False},
        keywords={"dtype": None},
        methods=(name,),
        synonyms={"axis": "dim"},
        finish=_dims_as_tuple,
    )


ACTIVATIONS = (
    Operator(
        target=F.relu,
        functions=(torch.relu,),
        methods=("relu",),
        modules=(nn.ReLU,),
        inplace_functions=(torch.relu_,),
        inplace_methods=("relu_",),
    ),
    Operator(target=F.relu6, modules=(nn.ReLU6,)),
    Operator(
        target=F.hardtanh,
        defaults={"min_val": -1.0, "max_val": 1.0},
        modules=(nn.Hardtanh,),
        inplace_functions=(F.hardtanh_,),
    ),
    unary("sigmoid", torch.special.expit, module=nn.Sigmoid),
    unary("tanh", module=nn.Tanh),
    Operator(target=F.glu, defaults={"dim": -1}, modules=(nn.GLU,)),
    Operator(target=F.hardsigmoid, modules=(nn.Hardsigmoid,)),
    Operator(target=F.hardswish, modules=(nn.Hardswish,)),
    Operator(target=F.silu, modules=(nn.SiLU,)),
    Operator(target=F.mish, modules=(nn.Mish,)),
    Operator(
        target=F.selu,
        functions=(torch.selu,),
        modules=(nn.SELU,),
        inplace_functions=(torch.selu_,),
    ),
    Operator(target=F.gelu, keywords={"approximate": "none"}, modules=(nn.GELU,)),
    Operator(target=F.elu, defaults={"alpha": 1.0}, modules=(nn.ELU,), inplace_functions=(F.elu_,)),
    Operator(
        target=F.leaky_relu,
        defaults={"negative_slope": 0.01},
        modules=(nn.LeakyReLU,),
        inplace_functions=(F.leaky_relu_,),
    ),
    Operator(target=F.softplus, defaults={"beta": 1.0, "threshold": 20.0}, modules=(nn.Softplus,)),
    Operator(
        target=F.softmax,
        defaults={"dim": None},
        keywords={"dtype": None},
        functions=(torch.softmax,),
        methods=("softmax",),
        modules=(nn.Softmax,),
    ),
    Operator(
        target=F.dropout,
        defaults={"p": 0.5, "training": True},
        functions=(torch.dropout,),
        synonyms={"train": "training"},
        view=True,
    ),
)

ARITHMETIC = (
    Operator(
        target=torch.add,
        required=("input", "other"),
        keywords={"alpha": 1},
        functions=(operator.add,),
        methods=("add", "__add__", "__radd__"),
        inplace_functions=(operator.iadd,),
        inplace_methods=("add_", "__iadd__"),
        commutative=True,
    ),
    Operator(
        target=torch.sub,
        required=("input", "other"),
        keywords={"alpha": 1},
        functions=(operator.sub, torch.subtract),
        methods=("sub", "subtract", "__sub__"),
        inplace_functions=(operator.isub,),
        inplace_methods=("sub_", "subtract_", "__isub__"),
    ),
    Operator(target=torch.rsub, required=("input", "other"), keywords={"alpha": 1}, methods=("__rsub__",)),
    Operator(
        target=torch.mul,
        required=("input", "other"),
        functions=(operator.mul, torch.multiply),
        methods=("mul", "multiply", "__mul__", "__rmul__"),
        inplace_functions=(operator.imul,),
        inplace_methods=("mul_", "multiply_", "__imul__"),
        commutative=True,
    ),
    Operator(
        target=torch.div,
        required=("input", "other"),
        keywords={"rounding_mode": None},
        functions=(operator.truediv, torch.divide, torch.true_divide),
        methods=("div", "divide", "true_divide", "__truediv__"),
        inplace_functions=(operator.itruediv,),
        inplace_methods=("div_", "divide_", "true_divide_", "__itruediv__"),
    ),
    Operator(
        target=torch.pow,
        required=("input", "exponent"),
        functions=(operator.pow,),
        methods=("pow", "__pow__"),
        inplace_functions=(operator.ipow,),
        inplace_methods=("pow_", "__ipow__"),
    ),
    Operator(
        target=torch.clamp,
        defaults={"min": None, "max": None},
        functions=(torch.clip,),
        methods=("clamp", "clip"),
        inplace_functions=(torch.clamp_, torch.clip_),
        inplace_methods=("clamp_", "clip_"),
    ),
    _reduction("mean"),
    _reduction("sum"),
)

SHAPES = (
    Operator(
        target=torch.cat,
        required=("tensors",),
        defaults={"dim": 0},
        functions=(torch.concat, torch.concatenate),
        synonyms={"axis": "dim"},
    ),
    Operator(target=torch.stack, required=("tensors",), defaults={"dim": 0}, synonyms={"axis": "dim"}),
    Operator(
        target=torch.flatten,
        defaults={"start_dim": 0, "end_dim": -1},
        methods=("flatten",),
        modules=(nn.Flatten,),
        view=True,
    ),
    Operator(
        target=torch.reshape,
        required=("input", "shape"),
        methods=("reshape", "view"),
        synonyms={"size": "shape"},
        spread="shape",
        view=True,
    ),
    Operator(target=torch.permute, required=("input", "dims"), methods=("permute",), spread="dims", view=True),
    Operator(
        target=torch.transpose,
        required=("input", "dim0", "dim1"),
        functions=(torch.swapaxes, torch.swapdims),
        methods=("transpose", "swapaxes", "swapdims"),
        synonyms={"axis0": "dim0", "axis1": "dim1"},
        view=True,
    ),
    Operator(target=torch.unsqueeze, required=("input", "dim"), methods=("unsqueeze",), view=True),
    Operator(target=torch.chunk, required=("input", "chunks"), defaults={"dim": 0}, methods=("chunk",), view=True),
    Operator(
        target=torch.split,
        required=("tensor", "split_size_or_sections"),
        defaults={"dim": 0},
        methods=("split",),
        synonyms={"split_size": "split_size_or_sections"},
        view=True,
    ),
    Operator(target=F.pixel_shuffle, required=("input", "upscale_factor"), modules=(nn.PixelShuffle,), view=True),
    Operator(target=F.pixel_unshuffle, required=("input", "downscale_factor"), modules=(nn.PixelUnshuffle,), view=True),
    Operator(
        target=F.interpolate,
        defaults={
            "size": None,
            "scale_factor": None,
            "mode": "nearest",
            "align_corners": None,
            "recompute_scale_factor": None,
            "antialias": False,
        },
        modules=(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
        attributes={"antialias": False},
    ),
    Operator(target=F.pad, required=("input", "pad"), defaults={"mode": "constant", "value": None}),
)

POOLS = (
    _max_pool(1, F.max_pool1d, nn.MaxPool1d),
    _max_pool(2, F.max_pool2d, nn.MaxPool2d),
    _max_pool(3, F.max_pool3d, nn.MaxPool3d),
    _avg_pool(F.avg_pool1d, nn.AvgPool1d),
    _avg_pool(F.avg_pool2d, nn.AvgPool2d, divisor_override=None),
    _avg_pool(F.avg_pool3d, nn.AvgPool3d, divisor_override=None),
    _adaptive(F.adaptive_avg_pool1d, nn.AdaptiveAvgPool1d),
    _adaptive(F.adaptive_avg_pool2d, nn.AdaptiveAvgPool2d),
    _adaptive(F.adaptive_avg_pool3d, nn.AdaptiveAvgPool3d),
    _adaptive(F.adaptive_max_pool1d, nn.AdaptiveMaxPool1d, return_indices=False),
    _adaptive(F.adaptive_max_pool2d, nn.AdaptiveMaxPool2d, return_indices=False),
    _adaptive(F.adaptive_max_pool3d, nn.AdaptiveMaxPool3d, return_indices=False),
)

WITH_PARAMETERS = (  # called as functions, with tensors of the user's own; nn.Conv2d and the like stay modules
    _conv(F.conv1d),
    _conv(F.conv2d),
    _conv(F.conv3d),
    _conv_transpose(F.conv_transpose1d),
    _conv_transpose(F.conv_transpose2d),
    _conv_transpose(F.conv_transpose3d),
    Operator(target=F.linear, required=("input", "weight"), defaults={"bias": None}),
    Operator(
        target=F.embedding,
        required=("input", "weight"),
        defaults={
            "padding_idx": None,
            "max_norm": None,
            "norm_type": 2.0,
            "scale_grad_by_freq": False,
            "sparse": False,
        },
    ),
    Operator(
        target=F.embedding_bag,
        required=("input", "weight"),
        defaults={
            "offsets": None,
            "max_norm": None,
            "norm_type": 2.0,
            "scale_grad_by_freq": False,
            "mode": "mean",
            "sparse": False,
            "per_sample_weights": None,
            "include_last_offset": False,
            "padding_idx": None,
        },
    ),
    Operator(
        target=F.batch_norm,
        required=("input", "running_mean", "running_var"),
        defaults={"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5},
    ),
    Operator(
        target=F.layer_norm,
        required=("input", "normalized_shape"),
        defaults={"weight": None, "bias": None, "eps": 1e-5},
    ),
    Operator(
        target=F.group_norm,
        required=("input", "num_groups"),
        defaults={"weight": None, "bias": None, "eps": 1e-5},
    ),
)

OPERATORS: tuple[Operator, ...] = ACTIVATIONS + ELEMENTARY + ARITHMETIC + PRODUCTS + SHAPES + POOLS + WITH_PARAMETERS
