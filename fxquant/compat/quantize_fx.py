"""The functions of ``torch.ao.quantization.quantize_fx``: prepare, convert, fuse; and the names that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.compat.backend_config import BackendConfig
from fxquant.compat.configuration import note_qconfigs, rules_of
from fxquant.compat.conversion import converted_model, explicit_model, preserve, read_config
from fxquant.compat.custom_config import ConvertCustomConfig, FuseCustomConfig, PrepareCustomConfig
from fxquant.compat.equalization import asks_for_equalization, equalized
from fxquant.compat.fuse import fused
from fxquant.compat.preparation import observe
from fxquant.compat.qconfig_mapping import (
    QConfigMapping,
    get_default_qat_qconfig_mapping,
    get_default_qconfig_mapping,
)
from fxquant.compat.submodules import prepare_submodules
from fxquant.compat.torch_registration import take_torch_switches
from fxquant.errors import NotOffered
from fxquant.graph.module import get_metadata


def prepare_fx(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any = None,
    prepare_custom_config: Any = None,
    _equalization_config: Any = None,
    backend_config: Any = None,
) -> GraphModule:
    """Make a copy of a model whose values are measured by children ``activation_post_process_0``, ``_1``, ...

    Args:
        model: The float model, in evaluation mode. It is not changed.
        qconfig_mapping: A ``QConfigMapping`` of this package or of torch.ao, or the dict form.
        example_inputs: Tuple of the positional inputs. If there are none, as in programs for torch before 1.13, or if
            they do not run, what depends on shapes stays float.
        prepare_custom_config: A ``PrepareCustomConfig``, or the dict form.
        _equalization_config: A ``QConfigMapping`` of equalization QConfigs, or the dict form. Channels between layers
            are scaled by ``fxquant.equalize`` on the example inputs, before anything is measured, where the noise
            falls by it; the weights of the result are the scaled ones.
        backend_config: A ``BackendConfig``: what it forbids stays float.

    Returns:
        A ``GraphModule`` to run calibration data through; then ``convert_fx``.
    """
    return _prepare(model, qconfig_mapping, example_inputs, prepare_custom_config, _equalization_config, backend_config)


def prepare_qat_fx(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any = None,
    prepare_custom_config: Any = None,
    backend_config: Any = None,
) -> GraphModule:
    """Make a copy of a model that trains as it will be quantized. Arguments are those of ``prepare_fx``."""
    return _prepare(model, qconfig_mapping, example_inputs, prepare_custom_config, None, backend_config, trains=True)


def _prepare(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any,
    prepare_custom_config: Any,
    equalization: Any,
    backend_config: Any,
    trains: bool = False,
) -> GraphModule:
    custom = read_config(prepare_custom_config, PrepareCustomConfig)
    backend = None if backend_config is None else read_config(backend_config, BackendConfig)
    rules = rules_of(qconfig_mapping)
    scaling = {} if equalization is None else rules_of(equalization)

    def refine(planned: Any) -> Any:
        return equalized(planned, scaling) if asks_for_equalization(scaling) else planned

    def prepare_one(child: nn.Module, rules: Any, inputs: Any, custom: Any, backend: Any) -> nn.Module:
        return _prepare(child, rules, inputs, custom, None, backend, trains)

    model, whole = prepare_submodules(model, custom, rules, backend, prepare_one)
    take_torch_switches()
    observed = observe(model, rules, example_inputs, custom, whole, backend, refine, trains=trains)
    note_qconfigs(observed, model, rules)
    preserve(observed, model, custom.preserved_attributes)
    return observed


def fuse_fx(model: nn.Module, fuse_custom_config: Any = None, backend_config: Any = None) -> GraphModule:
    """Make a copy of a model in evaluation mode, in which batch norms are folded and ReLU stands in a container.

    The containers are those of ``torch.ao.nn.intrinsic``. ``prepare_fx`` needs none of this: it fuses by itself.

    Args:
        model: The float model. It is not changed.
        fuse_custom_config: A ``FuseCustomConfig``, or the dict form.
        backend_config: A ``BackendConfig`` whose patterns have fuser methods; None: what torch.ao fuses by default.

    Raises:
        NotOffered: torch has no such containers any more.
    """
    custom = read_config(fuse_custom_config, FuseCustomConfig)
    made = fused(model, None if backend_config is None else read_config(backend_config, BackendConfig))
    preserve(made, model, custom.preserved_attributes)
    return made


def convert_fx(
    graph_module: nn.Module,
    convert_custom_config: Any = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: Any = None,
    backend_config: Any = None,
    keep_original_weights: bool = False,
) -> GraphModule:
    """Make the int8 model, with the qparams that the observers or fake-quantize modules choose now.

    Args:
        graph_module: What ``prepare_fx`` or ``prepare_qat_fx`` gave. It is not changed.
        convert_custom_config: A ``ConvertCustomConfig``, or the dict form.
        _remove_qconfig: False keeps the attribute ``qconfig`` of modules, which says what decided for them.
        qconfig_mapping: What it leaves in float is not converted.
        backend_config: Taken, and of no effect: ``prepare_fx`` has read it.
        keep_original_weights: Refused.

    Raises:
        InputError: it is no such model.
        AssertionError: ``qconfig_mapping`` asks for other observers than ``prepare_fx`` attached, as torch.ao says it.
    """
    if keep_original_weights:
        raise NotOffered(
            "keep_original_weights is not offered", got="keep_original_weights=True", hint="keep the float model"
        )
    made = converted_model(graph_module, convert_custom_config, qconfig_mapping, "int8")
    if not _remove_qconfig:
        note_qconfigs(made, graph_module, get_metadata(graph_module, "rules"))
    return made


def convert_to_reference_fx(
    graph_module: nn.Module,
    convert_custom_config: Any = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: Any = None,
    backend_config: Any = None,
) -> GraphModule:
    """Make the reference: float operators between quantize and dequantize. Arguments are those of ``convert_fx``."""
    return converted_model(graph_module, convert_custom_config, qconfig_mapping, "reference")


def _convert_to_reference_decomposed_fx(
    graph_module: nn.Module,
    convert_custom_config: Any = None,
    qconfig_mapping: Any = None,
    backend_config: Any = None,
) -> GraphModule:
    return explicit_model(graph_module, convert_custom_config, qconfig_mapping)


def attach_preserved_attrs_to_model(model: nn.Module, preserved_attrs: Mapping[str, Any]) -> None:
    """Give a model attributes, and note them in its ``meta`` as ``_user_preserved_attributes``."""
    vars(model).setdefault("meta", {})["_user_preserved_attributes"] = dict(preserved_attrs)
    for name, value in preserved_attrs.items():
        setattr(model, name, value)


__all__ = [
    "BackendConfig",
    "ConvertCustomConfig",
    "FuseCustomConfig",
    "PrepareCustomConfig",
    "QConfigMapping",
    "attach_preserved_attrs_to_model",
    "convert_fx",
    "convert_to_reference_fx",
    "fuse_fx",
    "get_default_qat_qconfig_mapping",
    "get_default_qconfig_mapping",
    "prepare_fx",
    "prepare_qat_fx",
]
