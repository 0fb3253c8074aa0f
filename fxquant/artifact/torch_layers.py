"""The classes of ``torch.nn`` that a file may hold, each with the arguments that its constructor is given again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fxquant.errors import ArtifactError

_CONVOLUTION = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_NORM = "num_features eps momentum affine track_running_stats"
_EMBEDDING = "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse"
_RECURRENT = "input_size hidden_size num_layers bias batch_first dropout bidirectional"

WITH_TENSORS: dict[type[nn.Module], tuple[str, ...]] = {
    kind: tuple(arguments.split())
    for arguments, kinds in (
        ("in_features out_features bias", (nn.Linear,)),
        (_CONVOLUTION, (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
        (_CONVOLUTION + " output_padding", (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)),
        (_NORM, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)),
        (_NORM, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)),
        ("normalized_shape eps elementwise_affine bias", (nn.LayerNorm,)),
        ("normalized_shape eps elementwise_affine", (nn.RMSNorm,)),
        ("num_groups num_channels eps affine", (nn.GroupNorm,)),
        (_EMBEDDING, (nn.Embedding,)),
        (_EMBEDDING + " mode include_last_offset", (nn.EmbeddingBag,)),
        ("num_parameters", (nn.PReLU,)),
        ("in1_features in2_features out_features bias", (nn.Bilinear,)),
        (_RECURRENT + " proj_size", (nn.LSTM,)),
        (_RECURRENT, (nn.GRU,)),
        (_RECURRENT + " nonlinearity", (nn.RNN,)),
        ("input_size hidden_size bias", (nn.LSTMCell, nn.GRUCell)),
        ("input_size hidden_size bias nonlinearity", (nn.RNNCell,)),
    )
    for kind in kinds
}
"""Class -> arguments. ``bias`` is whether there is one; the others are attributes of the same name."""

_POOL = "kernel_size stride padding"

WITHOUT_TENSORS: dict[type[nn.Module], tuple[str, ...]] = {
    kind: tuple(arguments.split())
    for arguments, kinds in (
        ("", (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity)),
        ("", (nn.Sigmoid, nn.Tanh, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Softmax2d)),
        ("inplace", (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.SELU)),
        ("p inplace", (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)),
        ("alpha inplace", (nn.ELU, nn.CELU)),
        ("negative_slope inplace", (nn.LeakyReLU,)),
        ("min_val max_val inplace", (nn.Hardtanh,)),
        ("threshold value inplace", (nn.Threshold,)),
        ("lower upper inplace", (nn.RReLU,)),
        ("beta threshold", (nn.Softplus,)),
        ("lambd", (nn.Hardshrink, nn.Softshrink)),
        ("approximate", (nn.GELU,)),
        ("dim", (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)),
        ("start_dim end_dim", (nn.Flatten,)),
        ("dim unflattened_size", (nn.Unflatten,)),
        (_POOL + " dilation return_indices ceil_mode", (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)),
        (_POOL + " ceil_mode count_include_pad", (nn.AvgPool1d,)),
        (_POOL + " ceil_mode count_include_pad divisor_override", (nn.AvgPool2d, nn.AvgPool3d)),
        ("output_size", (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)),
        ("output_size return_indices", (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)),
        ("norm_type kernel_size stride ceil_mode", (nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)),
        (_POOL, (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)),
        ("size scale_factor mode align_corners recompute_scale_factor", (nn.Upsample,)),
        ("size scale_factor", (nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)),
        ("upscale_factor", (nn.PixelShuffle,)),
        ("downscale_factor", (nn.PixelUnshuffle,)),
        ("groups", (nn.ChannelShuffle,)),
        ("padding", (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)),
        ("padding", (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d)),
        ("padding", (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d)),
        ("padding", (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d)),
        ("padding value", (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)),
        ("size alpha beta k", (nn.LocalResponseNorm,)),
        ("dim eps", (nn.CosineSimilarity,)),
        ("norm eps keepdim", (nn.PairwiseDistance,)),
        ("kernel_size dilation padding stride", (nn.Unfold,)),
        ("output_size kernel_size dilation padding stride", (nn.Fold,)),
    )
    for kind in kinds
}
"""Class -> arguments, of classes that hold no tensors. Containers get their children afterwards."""

ARGUMENTS = {**WITH_TENSORS, **WITHOUT_TENSORS}

_ADDED: dict[type[nn.Module], dict[str, Any]] = {nn.LSTM: {"proj_size": 0}}
"""Arguments that older files lack."""
_LARGEST_ARGUMENT = 2**40
_LONGEST_ARGUMENT = 16
"""Numbers in one argument: sizes, paddings and shapes have at most a few per dimension."""


def arguments_of(layer: nn.Module, kind: type[nn.Module]) -> dict[str, Any]:
    """Read back the arguments that make such a layer."""
    return {
        name: layer.bias is not None and layer.bias is not False if name == "bias" else getattr(layer, name)
        for name in ARGUMENTS[kind]
    }


def make_layer(kind: type[nn.Module], arguments: Mapping[str, Any], tensors: int) -> nn.Module:
    """Make a layer without memory.

    Args:
        kind: A class of ``ARGUMENTS``.
        arguments: Its arguments by name.
        tensors: How many tensors the layer is going to hold.

    Raises:
        ArtifactError: other arguments, or the constructor refuses them.
    """
    arguments = {**_ADDED.get(kind, {}), **arguments}
    if set(arguments) != set(ARGUMENTS[kind]) or not all(map(_is_argument, arguments.values())):
        raise ArtifactError(
            "a layer in the file has other arguments than its class",
            got=ascii(dict(arguments))[:200],
            expected=f"{kind.__name__}({', '.join(ARGUMENTS[kind])})",
        )
    if not 0 <= arguments.get("num_layers", 0) <= max(tensors, 1):
        raise ArtifactError("a recurrent layer in the file has fewer tensors than layers", got=arguments["num_layers"])
    try:
        layer: nn.Module = kind(**arguments, **({"device": "meta"} if kind in WITH_TENSORS else {}))
    except Exception as error:
        raise ArtifactError(
            "a layer in the file cannot be made", at=kind.__name__, got=ascii(str(error))[:200]
        ) from error
    return layer.eval()


def _is_argument(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return len(value) <= _LONGEST_ARGUMENT and all(_is_argument(item) for item in value)
    if isinstance(value, int):
        return abs(value) <= _LARGEST_ARGUMENT
    return value is None or isinstance(value, (float, str))
