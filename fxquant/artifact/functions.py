"""The functions, methods and attributes that a graph in a file may name. What is in no table here is refused.

The tables hold what computes with tensors and sizes, and answers questions about them. What runs code, reads or writes
files, takes functions, reads memory by its address or changes torch's own state is in none.
"""

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
from torch._ops import OpOverload

from fxquant.artifact.operators import names_of, operator_called, operator_name
from fxquant.capture.attributes import assign_buffer
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
        " rshift getitem setitem is_ is_not contains index iadd iand ifloordiv ilshift imatmul imod imul ior ipow"
        " irshift isub itruediv ixor truth",
    ),
    ("builtins", builtins, "getattr len round max min sum int float bool abs"),
    (
        "math",
        math,
        "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist erf erfc exp exp2 expm1"
        " fabs factorial floor fma fmod frexp fsum gamma gcd hypot isclose isfinite isinf isnan isqrt lcm ldexp lgamma"
        " log log10 log1p log2 modf nextafter perm pow prod radians remainder sin sinh sqrt sumprod tan tanh trunc ulp",
    ),
    (
        "torch.nn.functional",
        F,
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d"
        " adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_max_pool3d"
        " adaptive_max_pool3d_with_indices affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm"
        " bilinear binary_cross_entropy binary_cross_entropy_with_logits celu celu_ channel_shuffle conv1d conv2d"
        " conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity"
        " cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu elu_ embedding embedding_bag"
        " feature_alpha_dropout fold fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d"
        " fractional_max_pool3d_with_indices gaussian_nll_loss gelu glu grid_sample group_norm gumbel_softmax"
        " hardshrink hardsigmoid hardswish hardtanh hardtanh_ hinge_embedding_loss huber_loss instance_norm"
        " interpolate kl_div l1_loss layer_norm leaky_relu leaky_relu_ linear linear_cross_entropy"
        " local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d"
        " max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool1d"
        " max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss"
        " multilabel_margin_loss multilabel_soft_margin_loss native_channel_shuffle nll_loss normalize one_hot pad"
        " pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6 relu_ rms_norm"
        " rrelu rrelu_ scaled_dot_product_attention selu selu_ sigmoid silu smooth_l1_loss soft_margin_loss softmax"
        " softmin softplus softshrink softsign tanh tanhshrink threshold threshold_ triplet_margin_loss unfold"
        " upsample upsample_bilinear upsample_nearest",
    ),
    (
        "torch",
        torch,
        "_assert _sym_acos _sym_asin _sym_atan _sym_cos _sym_cosh _sym_log2 _sym_sin _sym_sinh _sym_sqrt _sym_tan"
        " _sym_tanh abs absolute acos acosh adaptive_max_pool1d add addbmm addcdiv addcmul addmm addmv addr adjoint"
        " alias_copy all allclose alpha_dropout amax amin aminmax angle any arange arccos arccosh arcsin arcsinh"
        " arctan arctan2 arctanh argmax argmin argsort argwhere as_strided_copy as_strided_scatter asin asinh atan"
        " atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm bartlett_window batch_norm bernoulli"
        " bilinear binary_cross_entropy_with_logits bincount binomial bitwise_and bitwise_left_shift bitwise_not"
        " bitwise_or bitwise_right_shift bitwise_xor blackman_window block_diag bmm broadcast_shapes"
        " broadcast_tensors broadcast_to bucketize can_cast cartesian_prod cat cdist ceil celu chain_matmul"
        " channel_shuffle cholesky cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone"
        " column_stack combinations complex concat concatenate conj conj_physical constant_pad_nd conv1d conv2d"
        " conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution copysign corrcoef cos cosh"
        " cosine_embedding_loss cosine_similarity count_nonzero cov cross ctc_loss cummax cummin cumprod cumsum"
        " cumulative_trapezoid deg2rad det detach detach_copy diag diag_embed diagflat diagonal diagonal_copy"
        " diagonal_scatter diff digamma dist div divide dot dropout dsplit dstack einsum embedding embedding_bag"
        " empty_like empty_permuted empty_strided eq equal erf erfc erfinv exp exp2 expand_copy expm1 eye"
        " fake_quantize_per_channel_affine fake_quantize_per_tensor_affine feature_alpha_dropout feature_dropout fix"
        " flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac frexp frobenius_norm full"
        " full_like gather gcd ge geqrf ger get_device gradient greater greater_equal grid_sampler_2d"
        " grid_sampler_3d group_norm gru gru_cell gt hamming_window hann_window hardshrink hash_tensor heaviside"
        " hinge_embedding_loss histc histogram histogramdd hsplit hstack hypot i0 igamma igammac imag index_add"
        " index_copy index_fill index_put index_reduce index_select inner instance_norm inverse is_complex is_conj"
        " is_floating_point is_inference is_neg is_nonzero is_same_size is_signed is_tensor isclose isfinite isin"
        " isinf isnan isneginf isposinf isreal istft kaiser_window kl_div kron kthvalue layer_norm lcm ldexp le lerp"
        " less less_equal lgamma linspace log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet"
        " logical_and logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt lu lu_solve"
        " lu_unpack margin_ranking_loss masked_fill masked_scatter masked_select matmul matrix_exp matrix_power max"
        " max_pool1d max_pool1d_with_indices max_pool2d max_pool3d maximum mean median meshgrid min minimum mm mode"
        " moveaxis movedim msort mul multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile"
        " nansum narrow narrow_copy native_channel_shuffle native_dropout native_group_norm native_layer_norm"
        " native_norm ne neg negative nextafter nonzero nonzero_static norm norm_except_dim normal not_equal"
        " nuclear_norm numel ones ones_like orgqr ormqr outer pairwise_distance pca_lowrank pdist permute"
        " permute_copy pinverse pixel_shuffle pixel_unshuffle poisson poisson_nll_loss polar polygamma positive pow"
        " prelu prod promote_types put quantile rad2deg rand rand_like randint randint_like randn randn_like"
        " randperm ravel real reciprocal relu remainder renorm repeat_interleave reshape resolve_conj resolve_neg"
        " result_type rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round row_stack rrelu rsqrt"
        " rsub scalar_tensor scatter scatter_add scatter_reduce searchsorted select select_copy select_scatter selu"
        " sgn sigmoid sign signbit sin sinc sinh slice_copy slice_inverse slice_scatter slogdet softmax sort split"
        " split_copy split_with_sizes split_with_sizes_copy sqrt square squeeze squeeze_copy stack std std_mean stft"
        " sub subtract sum svd svd_lowrank swapaxes swapdims sym_float sym_int sym_ite sym_max sym_min sym_not"
        " sym_sqrt sym_sum t t_copy take take_along_dim tan tanh tensor_split tensordot threshold tile topk trace"
        " transpose transpose_copy trapezoid trapz triangular_solve tril tril_indices triplet_margin_loss triu"
        " triu_indices true_divide trunc unbind unbind_copy unflatten unfold_copy unique unique_consecutive"
        " unravel_index unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy vander var"
        " var_mean vdot view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack"
        " where xlogy zeros zeros_like",
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

_IN_PLACE = tuple(
    (place, module, " ".join(f"{name}_" for name in names.split()))
    for place, module, names in _OF_MODULES
    if module is torch
)
"""Functions of ``torch`` that work in place: ``torch.relu_``."""

_NAMED: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("collections.OrderedDict", OrderedDict),
    ("collections.deque", deque),
    ("torch.Size", torch.Size),
    ("fxquant.assign_buffer", assign_buffer),
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
        for place, module, names in (*_OF_MODULES, *_IN_PLACE)
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
    " cauchy_ chalf cuda dense_dim dim_order geometric_ index is_set_to log_normal_ random_ sparse_dim sparse_mask"
    " storage_offset tolist"
)
_REFLECTED = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_FURTHER = "abs eq ge getitem gt invert le lt ne neg pos setitem"
_OF_SYMBOLS = {
    *(f"__{way}{name}__" for name in _REFLECTED.split() for way in ("", "r", "i")),
    *(f"__{name}__" for name in _FURTHER.split()),
}
"""``x.__and__(y)``, as exported programs spell ``x & y``."""

_OF_FUNCTIONS = {name.removeprefix("torch.") for name in FUNCTIONS if re.fullmatch(r"torch\.\w+", name)}

METHODS = frozenset(
    name
    for name in {*_METHODS.split(), *_OF_FUNCTIONS, *(f"{function}_" for function in _OF_FUNCTIONS), *_OF_SYMBOLS}
    if hasattr(Tensor, name)
)
"""Methods of tensors that a graph may call: those of a list, and those that a function of ``torch`` above is, too, also
in place."""

_OPERATORS = names_of(FUNCTIONS, METHODS)


def function_called(name: str) -> Callable[..., Any] | None:
    """Find what a name in a file calls; None if it is the name of nothing that a graph may call."""
    return FUNCTIONS.get(name) or operator_called(name, _OPERATORS)


def name_of(function: Any) -> str | None:
    """Return the name of a function or an operator in a file; None if no graph in a file may call it."""
    if isinstance(function, OpOverload):
        return operator_name(function, _OPERATORS)
    return NAMES.get(function)


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
