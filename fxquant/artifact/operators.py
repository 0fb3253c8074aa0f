"""The operators of ATen that a graph in a file may call: programs of ``torch.export`` hold them where no function is.

An operator may be called where the function, or the method, of its name may; and so may those of a list. An overload
counts if it takes and gives plain data: tensors, numbers, texts, devices, generators of random numbers, lists of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

_PREFIX = "torch.ops.aten."
_NAME = re.compile(r"torch\.ops\.aten\.([A-Za-z_]\w{0,99})\.([A-Za-z_]\w{0,99})", re.ASCII)

_PLACES = {"torch": "", "torch.fft": "fft_", "torch.linalg": "linalg_", "torch.special": "special_"}
"""Where functions stand -> what the names of their operators begin with."""

_OTHERS = (
    # what functions of torch.nn.functional are made of
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _convolution _embedding_bag _embedding_bag_forward_only _pad_circular"
    " _pad_enum _trilinear _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d"
    " _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface adaptive_avg_pool1d"
    " adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d celu_"
    " channel_shuffle col2im constant_pad_nd conv_tbc convolution cosine_similarity elu elu_ feature_alpha_dropout"
    " feature_dropout fractional_max_pool2d fractional_max_pool3d gelu gelu_ glu grid_sampler_2d grid_sampler_3d"
    " hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ im2col leaky_relu leaky_relu_ linear"
    " log_sigmoid log_sigmoid_forward max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d"
    " max_pool3d_with_indices max_unpool2d max_unpool3d mish mish_ native_channel_shuffle native_dropout"
    " native_group_norm native_layer_norm one_hot pad pairwise_distance reflection_pad1d reflection_pad2d"
    " reflection_pad3d relu6 relu6_ replication_pad1d replication_pad2d replication_pad3d rrelu rrelu_"
    " rrelu_with_noise scaled_dot_product_attention selu_ silu silu_ softplus softshrink thnn_conv2d threshold_"
    " upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d"
    " upsample_nearest3d upsample_trilinear3d"
    # losses
    " binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss ctc_loss"
    " hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss"
    " multilabel_margin_loss multilabel_margin_loss_forward nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward"
    " nll_loss_nd poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"
    # what decompositions of programs write
    " _assert_async _assert_scalar _assert_tensor_metadata _cdist_forward _fft_c2c _fft_c2r _fft_r2c"
    " _functional_assert_async _local_scalar_dense _log_softmax _native_batch_norm_legit"
    " _native_batch_norm_legit_no_training _pdist_forward _reshape_alias _softmax _to_copy _unique2 _unsafe_index"
    " _unsafe_index_put _unsafe_view alias copy empty_permuted empty_strided fill index lift lift_fresh"
    " lift_fresh_copy matrix_H mH mT new_empty_strided normal_functional numpy_T slice sym_numel sym_size"
    " sym_storage_offset sym_stride uniform unique_dim unique_dim_consecutive zero"
    # operators by their symbols
    " __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__"
)
"""Operators that are named after no function and no method of the tables."""

_TYPES = {
    *("Tensor", "int", "float", "bool", "number", "complex", "str", "Device", "Generator", "NoneType"),
    *("SymInt", "Scalar", "ScalarType", "Layout", "MemoryFormat"),
}
"""Types of arguments and results as a schema prints them, beside lists of them, and None in their place."""


def names_of(functions: Collection[str], methods: Collection[str]) -> frozenset[str]:
    """Return the names of operators that may be called.

    Args:
        functions: Names of functions, as ``torch.fft.rfft``.
        methods: Names of methods of tensors.
    """
    behind = {
        _PLACES[place] + name
        for place, _, name in (function.rpartition(".") for function in functions)
        if place in _PLACES
    }
    return frozenset({*behind, *methods, *_OTHERS.split()})


def operator_called(name: str, allowed: Collection[str]) -> OpOverload[..., Any] | None:
    """Find an operator by its name in a file, ``torch.ops.aten.im2col.default``; None if no file may call it.

    Args:
        name: Any text.
        allowed: What ``names_of`` gave.
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in allowed:
        return None
    packet = getattr(torch.ops.aten, found[1], None)  # of __eq__ it is a method of the namespace
    if not isinstance(packet, OpOverloadPacket) or found[2] not in packet.overloads():
        return None
    overload = getattr(packet, found[2])
    return overload if _takes_plain_data(overload) else None


def operator_name(operator: OpOverload[..., Any], allowed: Collection[str]) -> str | None:
    """Return the name of an operator in a file; None if no file may call it."""
    if operator.namespace != "aten":
        return None
    name = f"{_PREFIX}{operator._opname}.{operator._overloadname}"
    return name if operator_called(name, allowed) is operator else None


def _takes_plain_data(overload: OpOverload[..., Any]) -> bool:
    schema = overload._schema
    types = [str(one.type) for one in (*schema.arguments, *schema.returns)]
    plain = all({*re.sub(r"Optional|List|[\[\]]", " ", kind).split()} <= _TYPES for kind in types)
    of_tensors = "Tensor" in " ".join(types) or schema.name.startswith("aten::_assert_")
    return plain and of_tensors and not any(argument.is_out for argument in schema.arguments)
