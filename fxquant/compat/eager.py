"""torch.ao's eager mode: ``prepare`` and ``convert`` by the attribute ``qconfig`` of modules, on a traced graph.

Eager mode swaps modules, so that its programs mark with stubs where values become integers, fuse modules by name, and
give no example inputs. Here the model is traced, and all of that may stay as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import nn
from torch.fx import GraphModule

from fxquant.compat.custom_config import PrepareCustomConfig
from fxquant.compat.quantize_fx import convert_fx, convert_to_reference_fx, prepare_fx, prepare_qat_fx
from fxquant.compat.stubs import QuantWrapper
from fxquant.errors import InputError, NotOffered

Model = TypeVar("Model", bound=nn.Module)

_CLASSES = "float_to_observed_custom_module_class"
_CONVERTED_CLASSES = "observed_to_quantized_custom_module_class"


def prepare(
    model: nn.Module,
    inplace: bool = False,
    allow_list: Any = None,
    observer_non_leaf_module_list: Any = None,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
) -> GraphModule:
    """Make a model that measures its values, by the attribute ``qconfig`` of its modules.

    A module without the attribute has that of the module around it; ``module.qconfig = None`` keeps it in float.

    Args:
        model: The float model, in evaluation mode.
        inplace: Let ``model`` itself become what is returned, as programs expect that do not look at the result.
        allow_list: Refused.
        observer_non_leaf_module_list: Refused.
        prepare_custom_config_dict: The classes of modules that quantize themselves, in torch.ao's form for eager mode.

    Returns:
        A ``GraphModule`` to run calibration data through; then ``convert``.

    Raises:
        NotOffered: a list of classes is given.
        TracingError: torch.fx cannot trace the model's own forward.
    """
    _refuse_lists(allow_list=allow_list, observer_non_leaf_module_list=observer_non_leaf_module_list)
    custom = _custom(prepare_custom_config_dict)
    return in_place_of(model, prepare_fx(model, rules_of_attributes(model), None, custom), inplace)


def prepare_qat(model: nn.Module, mapping: Any = None, inplace: bool = False) -> GraphModule:
    """Make a model that trains as it will be quantized, by the attribute ``qconfig`` of its modules.

    Args:
        model: The float model, in training mode.
        mapping: Refused: training changes no classes.
        inplace: Let ``model`` itself become what is returned. Its parameters are then the objects that they were, so
            that an optimizer which has them trains them.

    Raises:
        InputError: the model is in evaluation mode.
        NotOffered: ``mapping`` is given.
    """
    _refuse_lists(mapping=mapping)
    if not model.training:
        raise InputError(
            "prepare_qat takes a model in training mode", got="evaluation mode", hint="model.train() first"
        )
    return in_place_of(model, prepare_qat_fx(model, rules_of_attributes(model), None), inplace)


def convert(
    module: nn.Module,
    mapping: Any = None,
    inplace: bool = False,
    remove_qconfig: bool = True,
    is_reference: bool = False,
    convert_custom_config_dict: Mapping[str, Any] | None = None,
    use_precomputed_fake_quant: bool = False,
) -> GraphModule:
    """Make the int8 model of what ``prepare`` or ``prepare_qat`` gave.

    Args:
        module: What they gave, or the model itself where they worked in place.
        mapping: Refused: ``ConvertCustomConfig`` names classes of one's own.
        inplace: Let ``module`` itself become what is returned.
        remove_qconfig: False keeps the attribute ``qconfig`` of modules.
        is_reference: Make the reference instead: float operators between quantize and dequantize.
        convert_custom_config_dict: The classes of modules that quantize themselves, in torch.ao's form for eager mode.
        use_precomputed_fake_quant: Taken, and of no effect: what fake-quantize modules hold is used in any case.

    Raises:
        InputError: it was not prepared.
        NotOffered: ``mapping`` is given.
    """
    _refuse_lists(mapping=mapping)
    custom = _custom_of_conversion(convert_custom_config_dict)
    make = convert_to_reference_fx if is_reference else convert_fx
    return in_place_of(module, make(module, custom, remove_qconfig), inplace)


def quantize(
    model: nn.Module, run_fn: Callable[..., Any], run_args: Any, mapping: Any = None, inplace: bool = False
) -> GraphModule:
    """Prepare a model, run ``run_fn(prepared, *run_args)``, which calibrates it, and convert it."""
    prepared = prepare(model.eval() if inplace else copy.deepcopy(model).eval(), inplace)
    run_fn(prepared, *run_args)
    return convert(prepared, mapping, inplace)


def quantize_qat(model: nn.Module, run_fn: Callable[..., Any], run_args: Any, inplace: bool = False) -> GraphModule:
    """Prepare a model for training, run ``run_fn(prepared, *run_args)``, which trains it, and convert it."""
    prepared = prepare_qat(model.train() if inplace else copy.deepcopy(model).train(), inplace=inplace)
    run_fn(prepared, *run_args)
    prepared.eval()
    return convert(prepared, inplace=inplace)


def propagate_qconfig_(
    module: nn.Module, qconfig_dict: Mapping[str, Any] | None = None, prepare_custom_config_dict: Any = None
) -> None:
    """Set the attribute ``qconfig`` of all submodules, in place: their own, that of ``qconfig_dict``, or inherited.

    Args:
        module: The model.
        qconfig_dict: QConfigs by the path or, as text, by the class of a module. A path counts more than a class.
        prepare_custom_config_dict: Taken, and of no effect.
    """
    by_name = dict(qconfig_dict or {})

    def visit(one: nn.Module, path: str, inherited: Any) -> None:
        by_class = by_name.get(type(one).__name__, by_name.get(str(type(one)), by_name.get(type(one), inherited)))  # type: ignore[call-overload]
        found = by_name.get(path, vars(one).get("qconfig", by_class))
        vars(one)["qconfig"] = found
        for name, child in one.named_children():
            visit(child, f"{path}.{name}" if path else name, found)

    visit(module, "", by_name.get(""))


def add_quant_dequant(module: nn.Module) -> nn.Module:
    """Put stubs around the layers with a ``qconfig``, in place, and return the module; the stubs pass values on."""
    if not module._modules and vars(module).get("qconfig") is not None:
        return QuantWrapper(module)
    for name, child in module.named_children():
        module._modules[name] = add_quant_dequant(child)
    return module


def rules_of_attributes(model: nn.Module) -> dict[str, Any]:
    """Return, in the dict form of a ``QConfigMapping``, what the attributes ``qconfig`` of a model's modules say."""
    own = {path: vars(module)["qconfig"] for path, module in model.named_modules() if "qconfig" in vars(module)}
    return {"": own.pop("", None), "module_name": list(own.items())}


def _custom(given: Mapping[str, Any] | None) -> PrepareCustomConfig:
    """Read torch.ao's form for eager mode, which names classes without the kind of quantization."""
    given = dict(given or {})
    classes = given.pop(_CLASSES, {})
    return PrepareCustomConfig.from_dict({**given, _CLASSES: {"static": classes} if classes else {}})


def _custom_of_conversion(given: Mapping[str, Any] | None) -> dict[str, Any]:
    classes = dict(given or {}).get(_CONVERTED_CLASSES, {})
    return {_CONVERTED_CLASSES: {"static": classes}} if classes else {}


def in_place_of(model: nn.Module, result: Model, inplace: bool) -> Model:
    """Return what was made; if ``inplace``, ``model`` becomes it: its class, its modules and its attributes."""
    if not inplace:
        return result
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, new in list(result.named_parameters(remove_duplicate=False)):
        old = parameters.get(name)
        if old is not None and old.shape == new.shape and old.dtype == new.dtype:
            parent, _, attribute = name.rpartition(".")
            result.get_submodule(parent)._parameters[attribute] = old
    model.__dict__ = result.__dict__
    model.__class__ = type(result)
    return cast(Model, model)


def _refuse_lists(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise NotOffered(
                f"{name} is not offered",
                got=f"{name}={type(value).__name__}",
                hint="module.qconfig = None keeps a module in float; prepare_fx takes rules by class and by name",
            )
