"""``quantize_dynamic``, and what torch.ao's eager mode has beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fxquant.capture.trace_guards import require_value
from fxquant.compat.configuration import qconfig_of
from fxquant.compat.eager import (
    add_quant_dequant,
    convert,
    in_place_of,
    prepare,
    prepare_qat,
    propagate_qconfig_,
    quantize,
    quantize_qat,
)
from fxquant.compat.not_offered import refusing
from fxquant.compat.preparation import Observing
from fxquant.compat.qconfig import (
    default_dynamic_qconfig,
    float_qparams_weight_only_qconfig,
    float_qparams_weight_only_qconfig_4bit,
)
from fxquant.compat.swapping import swap_layers
from fxquant.errors import NotOffered, TracingError, listing, warn
from fxquant.plan.qconfig import QConfigMapping

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)

SPECS: dict[torch.dtype, tuple[Any, tuple[type[nn.Module], ...]]] = {
    torch.qint8: (default_dynamic_qconfig, (nn.Linear, *RECURRENT)),
    torch.quint8: (float_qparams_weight_only_qconfig, (nn.Embedding, nn.EmbeddingBag)),
    torch.quint4x2: (float_qparams_weight_only_qconfig_4bit, (nn.Embedding, nn.EmbeddingBag)),
}
"""dtype -> the QConfig that torch.ao takes for it, and the modules that it quantizes where none are named."""


def quantize_dynamic(
    model: nn.Module,
    qconfig_spec: Any = None,
    dtype: torch.dtype = torch.qint8,
    mapping: Any = None,
    inplace: bool = False,
) -> nn.Module:
    """Make a model whose linear layers are int8 and measure their inputs in each call; or whose tables are integers.

    Nothing is calibrated. Recurrent layers that stay float are warned of. The result is a graph; of a model whose own
    forward torch.fx cannot trace, it is a copy in which the layers are quantized one by one.

    Args:
        model: The float model, in evaluation mode.
        qconfig_spec: Module classes or names; or a dict from these to a QConfig. None: what torch.ao quantizes.
        dtype: ``torch.qint8``, or ``torch.quint8`` and ``torch.quint4x2`` for tables of embeddings.
        mapping: Refused.
        inplace: Let ``model`` itself become what is returned.

    Raises:
        NotOffered: ``dtype`` is float16, or ``mapping`` is given.
    """
    if dtype not in SPECS:
        raise NotOffered("quantize_dynamic makes no such weights", got=dtype, hint="model.half() keeps float16 weights")
    if mapping is not None:
        hint = "module classes as keys of qconfig_spec say what is quantized"
        raise NotOffered("quantize_dynamic takes no classes of quantized layers", got="mapping=...", hint=hint)
    # Make rules of the specification.
    qconfig, usual = SPECS[dtype]
    spec = dict.fromkeys(usual, qconfig) if qconfig_spec is None else qconfig_spec
    if not isinstance(spec, Mapping):
        spec = dict.fromkeys(spec, qconfig)
    rules = QConfigMapping()
    for key, value in spec.items():
        setter: Any = rules.set_module_name if isinstance(key, str) else rules.set_object_type
        setter(key, qconfig_of(value))
    # Convert the traced model; what cannot be traced, or takes less when traced, keeps its code, and gets other layers.
    converted: nn.Module
    try:
        observing = Observing(model, None, rules)
        takes_less = any(node.target is require_value for node in observing.graph_module.graph.nodes)
    except TracingError:
        takes_less = True
    if takes_less:
        converted = swap_layers(model, spec, (nn.Linear, *RECURRENT, nn.Embedding, nn.EmbeddingBag))
    else:
        converted = observing.convert()
    # Say what stayed float.
    float_paths = {path for path, module in converted.named_modules() if isinstance(module, RECURRENT)}
    left = [
        f"{path} ({type(module).__name__})"
        for path, module in model.named_modules()
        if path in float_paths and (type(module) in spec or path in spec)
    ]
    if left:
        hint = "quantize_dynamic(model, {nn.Linear}) leaves them out"
        warn("recurrent layers stay float", got=listing(left), hint=hint)
    return in_place_of(model, converted, inplace)


swap_module = refusing("swap_module")
get_default_custom_config_dict = refusing("get_default_custom_config_dict")

__all__ = [
    "add_quant_dequant",
    "convert",
    "get_default_custom_config_dict",
    "prepare",
    "prepare_qat",
    "propagate_qconfig_",
    "quantize",
    "quantize_dynamic",
    "quantize_qat",
    "swap_module",
]
