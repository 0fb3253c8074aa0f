"""Converts a prepared model, and the submodules that were prepared on their own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.compat.configuration import rules_of
from fxquant.compat.custom_config import ConvertCustomConfig
from fxquant.compat.preparation import is_prepared, stays_float
from fxquant.compat.reading_observers import quantizer_from
from fxquant.compat.refinement import without_units_left_in_float
from fxquant.compat.standalone import connect_standalone
from fxquant.compat.submodules import convert_submodules
from fxquant.errors import InputError
from fxquant.exporting import explicit
from fxquant.graph.module import get_metadata
from fxquant.quantizer.quantizer import Quantizer

_PRESERVED = "_user_preserved_attributes"
"""Key of ``GraphModule.meta``, torch.fx's own."""


def converted_model(graph_module: nn.Module, convert_custom_config: Any, qconfig_mapping: Any, to: str) -> GraphModule:
    """Return a model of the form ``to``; the other arguments are those of ``convert_fx``.

    Raises:
        InputError: it was not prepared.
    """
    custom = read_config(convert_custom_config, ConvertCustomConfig)
    if not is_prepared(graph_module) or not isinstance(graph_module, GraphModule):
        raise InputError(
            "the model was not prepared",
            got=type(graph_module).__name__,
            expected="what prepare_fx or prepare_qat_fx gave",
            hint="fxquant.convert makes the quantized model of a Quantizer"
            if isinstance(graph_module, Quantizer)
            else "prepare_fx(model, qconfig_mapping, example_inputs) first",
        )
    if stays_float(graph_module):
        converted: GraphModule = copy.deepcopy(graph_module).eval()
    else:
        quantizer = quantizer_from(graph_module)
        if qconfig_mapping is not None:
            quantizer = without_units_left_in_float(
                quantizer, get_metadata(graph_module, "rules"), rules_of(qconfig_mapping)
            )
        converted = quantizer.convert(to=to)
    convert_submodules(converted, custom, lambda child: converted_model(child, None, None, to), is_prepared)
    for module in converted.modules():
        vars(module).pop("qconfig", None)
    connect_standalone(converted)
    preserve(converted, graph_module, custom.preserved_attributes)
    return converted


def explicit_model(graph_module: nn.Module, convert_custom_config: Any, qconfig_mapping: Any) -> GraphModule:
    """Return the reference with quantize and dequantize as operators of ``quantized_decomposed``."""
    reference = converted_model(graph_module, convert_custom_config, qconfig_mapping, "reference")
    return reference if get_metadata(reference, "quant_plan") is None else explicit(reference)


def read_config(config: Any, kind: Any) -> Any:
    """Return a configuration that may be None, or a dict."""
    if config is None:
        return kind()
    return kind.from_dict(config) if isinstance(config, Mapping) else config


def preserve(target: GraphModule, model: nn.Module, names: list[str]) -> None:
    """Keep attributes that the forward does not use, as torch.ao does: on the module, and in its ``meta``."""
    found = {name: getattr(model, name) for name in names if hasattr(model, name)}
    for name, value in found.items():
        if not hasattr(target, name):
            setattr(target, name, value)
    target.meta[_PRESERVED] = {**target.meta.get(_PRESERVED, {}), **copy.copy(found)}
