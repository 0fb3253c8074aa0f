"""The functions, methods and attributes that a graph in a file may name. What is in no table here is refused."""

from __future__ import annotations

import builtins
import math
import operator
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.capture.trace_guards import (
    require_answer,
    require_count,
    require_exported,
    require_given,
    require_items,
    require_rank,
    require_value,
)
from fxquant.graph.containers import default_dict
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
        " max_pool2d max_pool3d max_unpool1d max_unpool2d max_unpool3d mish normalize one_hot pad pairwise_distance"
        " pdist pixel_shuffle pixel_unshuffle prelu relu relu6 rms_norm rrelu scaled_dot_product_attention selu"
        " sigmoid silu softmax softmin softplus softshrink softsign tanh tanhshrink threshold unfold",
    ),
    (
        "torch",
        torch,
        "_assert abs absolute acos acosh adaptive_max_pool1d add addbmm addcdiv addcmul addmm addmv addr adjoint all"
        " alpha_dropout amax amin aminmax angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax"
        " argmin argsort argwhere asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm"
        " bartlett_window batch_norm bernoulli bilinear bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or"
        " bitwise_right_shift bitwise_xor blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize"
        " cartesian_prod cat cdist ceil celu chain_matmul chunk clamp clamp_max clamp_min clip clone column_stack"
        " combinations complex concat concatenate conj conj_physical conv1d conv2d conv3d conv_transpose1d"
        " conv_transpose2d conv_transpose3d copysign corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod"
        " cumsum cumulative_trapezoid deg2rad det detach diag diag_embed diagflat diagonal diagonal_scatter diff"
        " digamma dist div divide dot dropout dsplit dstack einsum embedding embedding_bag empty_like eq erf erfc"
        " erfinv exp exp2 expm1 eye fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac"
        " frexp full full_like gather gcd ge greater greater_equal group_norm gt hamming_window hann_window heaviside"
        " histc hsplit hstack hypot i0 igamma igammac imag index_add index_copy index_fill index_put index_reduce"
        " index_select inner instance_norm inverse is_complex is_floating_point isclose isfinite isin isinf isnan"
        " isneginf isposinf isreal istft kaiser_window kron kthvalue layer_norm lcm ldexp le lerp less less_equal"
        " lgamma linspace log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and"
        " logical_not logical_or logical_xor logit logspace logsumexp lt masked_fill masked_scatter masked_select"
        " matmul matrix_exp matrix_power max maximum mean median meshgrid min minimum mm mode moveaxis movedim msort"
        " mul multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative"
        " nextafter nonzero norm normal not_equal numel ones ones_like outer pdist permute pinverse pixel_shuffle"
        " pixel_unshuffle poisson polar polygamma positive pow prelu prod put quantile rad2deg rand rand_like randint"
        " randint_like randn randn_like randperm ravel real reciprocal relu remainder renorm repeat_interleave reshape"
        " resolve_conj resolve_neg rms_norm roll rot90 round row_stack rsqrt rsub scalar_tensor scatter scatter_add"
        " scatter_reduce searchsorted select select_scatter selu sgn sigmoid sign signbit sin sinc sinh slice_scatter"
        " slogdet softmax sort split split_with_sizes sqrt square squeeze stack std std_mean stft sub subtract sum"
        " swapaxes swapdims t take take_along_dim tan tanh tensor_split tensordot threshold tile topk trace transpose"
        " trapezoid trapz tril tril_indices triu triu_indices true_divide trunc unbind unflatten unique_consecutive"
        " unsqueeze vander var var_mean vdot view_as_complex view_as_real vsplit vstack where xlogy zeros zeros_like",
    ),
    ("torch", torch, "_safe_softmax affine_grid_generator as_strided as_tensor empty grid_sampler tensor"),
    ("torch.sparse", torch.sparse, "addmm log_softmax mm softmax sum"),
    (
        "torch.fft",
        torch.fft,
        "fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft irfft2"
        " irfftn rfft rfft2 rfftfreq rfftn",
    ),
    (
        "torch.linalg",
        torch.linalg,
        "cholesky cond cross det diagonal eig eigh eigvals eigvalsh householder_product inv lstsq lu lu_factor lu_solve"
        " matmul matrix_exp matrix_norm matrix_power matrix_rank multi_dot norm pinv qr slogdet solve solve_triangular"
        " svd svdvals vander vecdot vector_norm",
    ),
    (
        "torch.special",
        torch.special,
        "digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1 i1e log1p log_ndtr"
        " log_softmax logit logsumexp multigammaln ndtr ndtri polygamma psi round sinc softmax xlog1py xlogy zeta",
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
    ("collections.deque", deque),
    ("torch.Size", torch.Size),
    ("fxquant.default_dict", default_dict),
    ("fxquant.require_answer", require_answer),
    ("fxquant.require_count", require_count),
    ("fxquant.require_exported", require_exported),
    ("fxquant.require_given", require_given),
    ("fxquant.require_items", require_items),
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
    " transpose_ squeeze_ unsqueeze_ exp_ sqrt_ floor_ round_ neg_ clip copy_ cdouble cfloat char element_size"
    " exponential_ fill_diagonal_ hardshrink new_empty short sum_to_size uniform_ unique"
    " coalesce detach_ indices is_coalesced requires_grad_ to_dense to_sparse values"
)

_OF_FUNCTIONS = {name.removeprefix("torch.") for name in FUNCTIONS if re.fullmatch(r"torch\.\w+", name)}

METHODS = frozenset(
    name
    for name in {*_METHODS.split(), *_OF_FUNCTIONS, *(f"{function}_" for function in _OF_FUNCTIONS)}
    if hasattr(Tensor, name)
)
"""Methods of tensors that a graph may call: those of a list, and those that a function of ``torch`` above is, too, also
in place."""

_OF_TENSORS = "H T device dtype imag is_cuda itemsize layout mH mT nbytes ndim real requires_grad shape"
_OF_RESULTS = (
    "H L LU P Q R S U V Vh eigenvalues eigenvectors exponent hist indices logabsdet mantissa max min pivots sign values"
)

ATTRIBUTES = frozenset((*_OF_TENSORS.split(), *_OF_RESULTS.split()))
"""Attributes that ``getattr`` in a graph may read: of tensors, and of what ``topk``, ``svd`` and others return."""

OF_DEVICES = frozenset(("index", "type"))
"""Attributes that it may read of ``x.device``."""

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
