"""The functions, methods and attributes that a graph in a file may name. What is in no table here is refused."""

from __future__ import annotations

import builtins
import math
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.capture.trace_guards import require_answer, require_exported, require_given, require_rank, require_value
from fxquant.nn import max_pool, shape

_OF_MODULES: tuple[tuple[str, Any, str], ...] = (
    (
        "operator",
        operator,
        "add sub mul truediv floordiv mod pow matmul neg pos invert abs eq ne lt le gt ge and_ or_ xor not_ lshift"
        " rshift getitem setitem is_ is_not contains index iadd isub imul itruediv truth",
    ),
    ("builtins", builtins, "getattr len round max min sum int float bool abs"),
    ("math", math, "sqrt floor ceil prod log log2 exp pow"),
    (
        "torch.nn.functional",
        F,
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d"
        " adaptive_max_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear celu"
        " channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cosine_similarity"
        " dropout dropout1d dropout2d dropout3d elu embedding embedding_bag feature_alpha_dropout fold gelu glu"
        " grid_sample group_norm hardshrink hardsigmoid hardswish hardtanh instance_norm interpolate layer_norm"
        " leaky_relu linear local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d max_pool1d"
        " max_pool2d max_pool3d mish normalize one_hot pad pairwise_distance pixel_shuffle pixel_unshuffle prelu relu"
        " relu6 rms_norm rrelu scaled_dot_product_attention selu sigmoid silu softmax softmin softplus softshrink"
        " softsign tanh tanhshrink threshold unfold",
    ),
    (
        "torch",
        torch,
        "_assert abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax any arange"
        " argmax argmin argsort asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm"
        " batch_norm bilinear bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_tensors broadcast_to"
        " bucketize cat cdist ceil celu chunk clamp clamp_max clamp_min clip clone column_stack concat concatenate"
        " conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cos cosh count_nonzero cross cummax"
        " cummin cumprod cumsum deg2rad detach diag diag_embed diagonal diff dist div divide dot dropout dsplit dstack"
        " einsum embedding empty_like eq erf erfc erfinv exp exp2 expm1 eye fix flatten flip fliplr flipud float_power"
        " floor floor_divide fmax fmin fmod frac full full_like gather ge greater greater_equal group_norm gt hstack"
        " hypot index_add index_copy index_fill index_select inner instance_norm isclose isfinite isinf isnan kron"
        " kthvalue layer_norm le lerp less less_equal linspace log log10 log1p log2 log_softmax logaddexp logcumsumexp"
        " logical_and logical_not logical_or logical_xor logit logsumexp lt masked_fill masked_scatter masked_select"
        " matmul max maximum mean median meshgrid min minimum mm moveaxis movedim mul multiply mv nan_to_num narrow ne"
        " neg negative nonzero norm not_equal numel ones ones_like outer permute pixel_shuffle pixel_unshuffle positive"
        " pow prelu prod quantile rad2deg ravel reciprocal relu remainder repeat_interleave reshape rms_norm roll rot90"
        " round row_stack rsqrt rsub scatter scatter_add searchsorted select selu sgn sigmoid sign sin sinc sinh"
        " softmax sort split split_with_sizes sqrt square squeeze stack std std_mean sub subtract sum swapaxes swapdims"
        " t take take_along_dim tan tanh tensordot threshold tile topk transpose tril triu true_divide trunc unbind"
        " unflatten unsqueeze var var_mean vsplit vstack where xlogy zeros zeros_like",
    ),
    (
        "fxquant.nn",
        max_pool,
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d max_pool3d",
    ),
    ("fxquant.nn", shape, "interpolate"),
)

_NAMED: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("collections.OrderedDict", OrderedDict),
    ("fxquant.require_answer", require_answer),
    ("fxquant.require_exported", require_exported),
    ("fxquant.require_given", require_given),
    ("fxquant.require_rank", require_rank),
    ("fxquant.require_value", require_value),
)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f"{place}.{name}": getattr(module, name)
        for place, module, names in _OF_MODULES
        for name in names.split()
        if hasattr(module, name)  # a function that this version of torch does not have yet, or any more
    },
    **dict(_NAMED),
}
"""Name in a file -> function."""

NAMES: dict[Any, str] = {function: name for name, function in reversed(FUNCTIONS.items())}
"""Function -> its name in a file; of two names of one function the first."""

_METHODS = (
    "abs add add_ addcmul all amax amin any argmax argmin argsort bmm bool byte ceil chunk clamp clamp_ clamp_max"
    " clamp_min clone contiguous cos cpu cumsum detach diff dim div div_ double eq erf exp expand expand_as fill_"
    " flatten flip float floor floor_divide gather ge gt half index_select int is_contiguous is_floating_point"
    " isinf isnan item le lerp log log_softmax logical_and logical_not logical_or long lt masked_fill masked_fill_"
    " matmul max maximum mean min minimum mm movedim mul mul_ narrow ndimension ne neg nelement new_full new_ones"
    " new_tensor new_zeros norm numel permute pow prod reciprocal relu relu_ repeat repeat_interleave reshape"
    " reshape_as roll round rsqrt scatter select sigmoid sigmoid_ sign sin size softmax sort split"
    " split_with_sizes sqrt square squeeze std stride sub sub_ sum swapaxes t tanh tanh_ tile to topk transpose"
    " tril triu trunc type type_as unbind unflatten unfold unsqueeze var view view_as where zero_ bfloat16"
    " transpose_ squeeze_ unsqueeze_ exp_ sqrt_ floor_ round_ neg_ clip copy_"
)

METHODS = frozenset(name for name in _METHODS.split() if hasattr(Tensor, name))
"""Methods of tensors that a graph may call."""

ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "is_cuda", "T", "mT", "real", "layout", "requires_grad"})
"""Attributes that ``getattr`` in a graph may read."""

_ELEMENTWISE = {
    "operator": "add sub mul truediv pow neg pos abs",
    "torch.nn.functional": "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu"
    " relu6 selu sigmoid silu softplus softshrink softsign tanh tanhshrink threshold",
    "torch": "abs absolute acos acosh add asin asinh atan atanh ceil celu clamp clamp_max clamp_min clip cos cosh"
    " deg2rad div divide erf erfc exp exp2 expm1 float_power floor fmod frac log log10 log1p log2 logit maximum minimum"
    " mul multiply nan_to_num neg negative positive pow rad2deg reciprocal relu remainder round rsqrt rsub selu sgn"
    " sigmoid sign sin sinc sinh sqrt square sub subtract tan tanh threshold true_divide trunc",
}

ELEMENTWISE = frozenset(
    FUNCTIONS[f"{place}.{name}"]
    for place, names in _ELEMENTWISE.items()
    for name in names.split()
    if f"{place}.{name}" in FUNCTIONS
)
"""Functions that a table of answers may be filled by: each element of their result depends on one of the input."""
