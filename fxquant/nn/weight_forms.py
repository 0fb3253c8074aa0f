"""Makes layers with quantized weights of those of torch, and these again."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from fxquant.errors import InputError
from fxquant.fake_quantize.converted import StaticFakeQuantize, is_calibrated
from fxquant.fake_quantize.qparams import to_integers
from fxquant.graph.query import called_type
from fxquant.graph.recurrent import is_recurrent, weight_of, without_matrices
from fxquant.nn.fake_quantize import (
    DequantizedConv1d,
    DequantizedConv2d,
    DequantizedConv3d,
    DequantizedConvTranspose1d,
    DequantizedConvTranspose2d,
    DequantizedConvTranspose3d,
    DequantizedEmbedding,
    DequantizedEmbeddingBag,
    DequantizedGRU,
    DequantizedGRUCell,
    DequantizedLinear,
    DequantizedLSTM,
    DequantizedLSTMCell,
    DequantizedRNN,
    DequantizedRNNCell,
    DequantizedWeight,
    FakeQuantizedConv1d,
    FakeQuantizedConv2d,
    FakeQuantizedConv3d,
    FakeQuantizedConvTranspose1d,
    FakeQuantizedConvTranspose2d,
    FakeQuantizedConvTranspose3d,
    FakeQuantizedEmbedding,
    FakeQuantizedEmbeddingBag,
    FakeQuantizedGRU,
    FakeQuantizedGRUCell,
    FakeQuantizedLinear,
    FakeQuantizedLSTM,
    FakeQuantizedLSTMCell,
    FakeQuantizedRNN,
    FakeQuantizedRNNCell,
    FakeQuantizedWeight,
)
from fxquant.nn.simulated_recurrent import INNER_ROUNDING
from fxquant.plan.spec import QParams

LAYERS: dict[type[nn.Module], tuple[type[FakeQuantizedWeight], type[DequantizedWeight]]] = {
    nn.Linear: (FakeQuantizedLinear, DequantizedLinear),
    nn.Conv1d: (FakeQuantizedConv1d, DequantizedConv1d),
    nn.Conv2d: (FakeQuantizedConv2d, DequantizedConv2d),
    nn.Conv3d: (FakeQuantizedConv3d, DequantizedConv3d),
    nn.ConvTranspose1d: (FakeQuantizedConvTranspose1d, DequantizedConvTranspose1d),
    nn.ConvTranspose2d: (FakeQuantizedConvTranspose2d, DequantizedConvTranspose2d),
    nn.ConvTranspose3d: (FakeQuantizedConvTranspose3d, DequantizedConvTranspose3d),
    nn.Embedding: (FakeQuantizedEmbedding, DequantizedEmbedding),
    nn.EmbeddingBag: (FakeQuantizedEmbeddingBag, DequantizedEmbeddingBag),
    nn.LSTM: (FakeQuantizedLSTM, DequantizedLSTM),
    nn.GRU: (FakeQuantizedGRU, DequantizedGRU),
    nn.RNN: (FakeQuantizedRNN, DequantizedRNN),
    nn.LSTMCell: (FakeQuantizedLSTMCell, DequantizedLSTMCell),
    nn.GRUCell: (FakeQuantizedGRUCell, DequantizedGRUCell),
    nn.RNNCell: (FakeQuantizedRNNCell, DequantizedRNNCell),
}
"""Torch class -> the same with a simulated weight, and with an integer one."""


def with_fake_quantized_weight(
    module: nn.Module,
    weight: QParams | nn.Module,
    output_axis: int = 0,
    *,
    share: bool = False,
    inner: nn.Module | None = None,
) -> FakeQuantizedWeight:
    """Return a copy of a layer that fake-quantizes its weight in each forward.

    Args:
        module: A linear layer or convolution of torch, or of a class derived from one that does not change
            ``forward``. Not changed.
        weight: The qparams, or a fake-quantize module to use as it is.
        output_axis: Dimension of the weight that counts the output channels.
        share: The copy holds the parameters of ``module`` themselves, not copies of them.
        inner: Rounds the input and the hidden states of a recurrent layer.

    Returns:
        A layer with the parameters ``weight`` and ``bias`` and the module ``weight_fake_quant``; gradients reach
        ``weight`` straight through the rounding. Hooks, training mode and the user's own attributes are kept.

    Raises:
        InputError: another kind of module.
    """
    layer = _copy_as(module, 0, share=share)
    layer.output_axis = output_axis
    layer.weight_fake_quant = StaticFakeQuantize(weight) if isinstance(weight, QParams) else weight
    if inner is not None:
        layer.add_module(INNER_ROUNDING, inner)
    return layer


def with_dequantized_weight(module: nn.Module, weight: QParams, inner: nn.Module | None = None) -> DequantizedWeight:
    """Return a copy of a layer that stores its weight as integers.

    Args:
        module: As for ``with_fake_quantized_weight``.
        weight: The qparams.
        inner: As for ``with_fake_quantized_weight``.

    Returns:
        A layer with the buffers ``weight`` (``weight.scheme.dtype``), ``weight_scale`` and ``weight_zero_point``, and
        the parameter ``bias``.

    Raises:
        InputError: another kind of module.
    """
    layer = _copy_as(module, 1)
    values = weight_of(module).detach()
    if is_recurrent(layer):
        without_matrices(layer)
    else:
        del layer.weight
    layer.register_buffer("weight", to_integers(values, weight.scale, weight.zero_point, weight.scheme))
    layer.register_buffer("weight_scale", weight.scale.detach().float().clone())
    layer.register_buffer("weight_zero_point", weight.zero_point.detach().clone())
    layer.weight_scheme = weight.scheme
    layer.weight_dtype = values.dtype
    layer.weight_is_known = is_calibrated(weight.scale)
    if inner is not None:
        layer.add_module(INNER_ROUNDING, inner)
    return layer


def without_fake_quantized_weight(layer: FakeQuantizedWeight) -> nn.Module:
    """Return the plain layer of torch that trains in ``layer``, with the same parameters."""
    plain: Any = copy.copy(layer)
    plain._parameters, plain._modules = dict(layer._parameters), dict(layer._modules)
    del plain.weight_fake_quant, plain.output_axis
    plain._modules.pop(INNER_ROUNDING, None)
    plain.__class__ = layer.torch_class
    return plain


def _copy_as(module: nn.Module, form: int, *, share: bool = False) -> Any:
    kind = called_type(module)
    forms = None if kind is None else LAYERS.get(kind)
    if forms is None:
        raise InputError(
            "the weight of this kind of module cannot be quantized",
            got=type(module).__name__,
            expected=", ".join(kind.__name__ for kind in LAYERS) + ", or a class derived from one without own forward",
        )
    memo = {id(parameter): parameter for parameter in module.parameters()} if share else {}
    layer: Any = copy.deepcopy(module, memo)
    if "weight" not in layer._parameters and not is_recurrent(layer):
        # A parametrization computes it: from here on it is what it was last.
        value = layer.weight.detach().clone()
        layer._modules.pop("parametrizations", None)
        layer.__class__ = forms[form]
        layer.weight = nn.Parameter(value)
    layer.__class__ = forms[form]
    return layer


def is_fake_quantized(layer: nn.Module) -> bool:
    """Tell whether a layer rounds its weight in each forward."""
    return isinstance(layer, FakeQuantizedWeight)
