"""Refuses models that cannot be prepared, and arguments that no model can be converted with, in the user's words."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.nn.parameter import is_lazy

from fxquant.backends.base import Backend
from fxquant.capture.copies import check_unscripted, copy_of
from fxquant.errors import InputError, LoweringError, UnknownNameError, listing, warn
from fxquant.graph.module import NamedGraphModule, get_metadata
from fxquant.kernels.library import SETTINGS, native_status
from fxquant.passes.pipelines import CONVERT
from fxquant.plan.quant_plan import QuantPlan
from fxquant.quantizer.given_model import float_model
from fxquant.registry import did_you_mean

PRODUCED_BY = {"prepared": "prepare", "training": "prepare_qat", "converted": "convert"}
"""Stage of a model -> the function that gave it."""

ALREADY = {"prepared": "prepared", "training": "prepared for training", "converted": "converted"}

INSTEAD = {
    "training": "prepare(model, example_inputs) of the float model; what prepare_qat gave observes in its own calls",
    "converted": "give the Quantizer that it was converted from: convert never changes it",
}
"""Stage of a model -> what to give where a Quantizer is wanted."""

AFTERWARDS = {
    "prepared": "convert(prepared) makes the int8 model",
    "training": "train it, and convert(model) makes the int8 model",
    "converted": "call it as it is",
}
"""Stage of a model -> what comes next."""


def stage_of(model: object) -> str:
    """Return the stage of a model: ``"prepared"``, ``"training"`` or ``"converted"``; empty if it has none."""
    attributes = getattr(model, "__dict__", {})
    if isinstance(attributes.get("plan"), QuantPlan):
        return "prepared"
    if not isinstance(model, GraphModule) or not isinstance(get_metadata(model, "quant_plan"), QuantPlan):
        return ""
    return "training" if get_metadata(model, "preparation") is not None else "converted"


def named_by_stage(model: object) -> str:
    """Return the class of a model, and what made it."""
    maker = PRODUCED_BY.get(stage_of(model))
    return type(model).__name__ + (f", which {maker} gave" if maker else "")


def checked_model(model: Any) -> nn.Module:
    """Return the float model, unwrapped. Refuse anything that is not a module with values.

    Raises:
        InputError: no module; one that this package made, one without values, or one with an attribute
            whose name cannot stand in code, or is one that traced models use themselves.
        TracingError: it is scripted, or a program that cannot be imported.
    """
    if stage := stage_of(model):
        raise InputError(
            f"the model is {ALREADY[stage]} already",
            got=named_by_stage(model),
            expected="a float model",
            hint=f"{AFTERWARDS[stage]}, or give the float model that it was made from",
        )
    model = float_model(model)
    if not isinstance(model, nn.Module):
        raise InputError(
            "the model is no torch.nn.Module",
            got=f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__,
            expected="a torch.nn.Module",
            hint=_how_to_module(model),
        )
    _check_submodules(model)
    check_unscripted(model)
    check_forward(model)
    tensors = (*model.named_parameters(), *model.named_buffers())
    if lazy := [name for name, tensor in tensors if is_lazy(tensor)]:
        raise InputError(
            "the model has lazy layers, whose weights have no shape yet",
            got=listing(lazy),
            expected="a model that has run once",
            hint="model(*example_inputs) once, before it is given",
        )
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise InputError(
            "the model is on the meta device, where tensors hold no values",
            got=listing(empty),
            expected="a model with its weights",
            hint="model.to_empty(device='cpu'), and load a state dict",
        )
    if unfit := [name for name in _names(model) if not _is_fit_for_code(name)]:
        raise InputError(
            "a name cannot stand in generated code",
            got=repr(unfit[0]),
            expected="names of modules, parameters and buffers without quotes, backslashes and control characters",
            hint="add_module and register_parameter take another name",
        )
    own = (*model._modules, *model._parameters, *model._buffers)
    if taken := [name for name in own if name in _names_of_graph_modules()]:
        raise InputError(
            "the model has parts under names that traced models use themselves",
            got=listing([repr(name) for name in taken]),
            expected="other names of children, parameters and buffers of the model itself; inside of these any will do",
            hint="nn.Sequential(model) in place of model, whose child it is then; or another name",
        )
    return model


def _check_submodules(model: nn.Module) -> None:
    """Refuse a model with a submodule that ``prepare_qat`` gave, which observes in its own calls.

    Raises:
        InputError: it names the submodule.
    """
    for path, module in model.named_modules():
        preparation: Any = get_metadata(module, "preparation") if stage_of(module) == "training" else None
        if preparation is not None and preparation.trains:  # fxquant.compat puts others there
            raise InputError(
                f"the submodule {path!r} is {ALREADY['training']} already",
                got=named_by_stage(module),
                expected="float submodules, or those that convert gave",
                hint="train it, and put convert(submodule) in its place, or the float model that it was made from",
            )


def _how_to_module(value: Any) -> str:
    """Write a hint that makes a module of what was given in place of one."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"an instance of it: {value.__name__}(...)"
    if isinstance(value, Mapping):
        return "this may be a state dict: build the model from its class, and model.load_state_dict(it)"
    if isinstance(value, (list, tuple)):
        return "torch.nn.Sequential(*layers) is a module" if all(isinstance(one, nn.Module) for one in value) else ""
    if isinstance(value, (str, os.PathLike)):
        return "build the model from its class, and model.load_state_dict(torch.load(path))"
    return ""


def check_forward(model: nn.Module) -> None:
    """Refuse a module that computes nothing itself: a container, or a class whose forward is not written.

    Raises:
        InputError: it is one.
    """
    if type(model).forward is not nn.Module.forward or "forward" in vars(model):
        return
    holds_modules = isinstance(model, (nn.ModuleList, nn.ModuleDict))
    raise InputError(
        "the model has no forward, which would say what it computes",
        got=type(model).__name__,
        expected="a module whose forward takes the example inputs",
        hint="torch.nn.Sequential(*model.children()) calls its modules one after the other"
        if holds_modules
        else "give the module that calls it, or write its forward",
    )


def _names(model: nn.Module) -> Iterator[str]:
    """Yield every name by which generated code may ask for a part of a model."""
    for module in model.modules():
        yield from (*module._modules, *module._parameters, *module._buffers)
        yield from (name for name, value in vars(module).items() if isinstance(value, Tensor))


@functools.cache
def _names_of_graph_modules() -> frozenset[str]:
    """Return the attributes that a traced model has beside those of every module, as ``graph`` and ``code``."""
    return frozenset(dir(NamedGraphModule(nn.Module(), Graph()))) - frozenset(dir(nn.Module()))


def _is_fit_for_code(name: str) -> bool:
    """Tell whether ``getattr(model, "name")`` can be written into code: torch.fx writes names as they are."""
    return name.isprintable() and not set(name) & set("\"'\\")


def check_unwrapped(model: nn.Module) -> None:
    """Refuse what ``torch.compile`` or ``DistributedDataParallel`` gave, also as a submodule.

    Raises:
        InputError: it says where the module inside is.
    """
    for path, module in model.named_modules():
        if "_orig_mod" in module._modules:
            by, inside = "torch.compile", "_orig_mod"
        elif isinstance(module, nn.parallel.DistributedDataParallel):
            by, inside = "DistributedDataParallel", "module"
        else:
            continue
        in_place = f"model.set_submodule({path!r}, model.get_submodule({path!r}).{inside})"
        raise InputError(
            f"the {f'submodule {path!r}' if path else 'model'} is wrapped by {by}",
            got=type(module).__name__,
            expected="the module inside",
            hint=in_place if path else f"give model.{inside}, and wrap what convert or prepare_qat makes of it",
        )


def not_prepared(given: object, function: str, *, or_training: bool = False) -> InputError:
    """Return the error to raise where a function was given something else than what ``prepare`` gave.

    Args:
        given: What it was given.
        function: Its name.
        or_training: Whether it takes what ``prepare_qat`` gave, too.
    """
    stage = stage_of(given)
    hint = INSTEAD.get(stage, "")
    if isinstance(given, nn.Module) and not stage:
        check_unwrapped(given)
        prepared = "prepare(model, example_inputs)"
        after = "" if function == "equalize" else ", after calibrate"
        hint = f"calibrate({prepared}, data)" if function == "calibrate" else f"{function}({prepared}){after}"
        taken = ("prepared", "training") if or_training else ("prepared",)
        inside = [path for path, module in given.named_modules() if path and stage_of(module) in taken]
        if inside:  # what was made by hand around it, AveragedModel or DataParallel
            hint = f"give model.get_submodule({inside[0]!r}), the {named_by_stage(given.get_submodule(inside[0]))}"
    return InputError(
        f"{function} takes what prepare{' or prepare_qat' if or_training else ''} gave",
        got=named_by_stage(given),
        expected=f"a Quantizer{', or the GraphModule of prepare_qat' if or_training else ''}",
        hint=hint,
    )


def eval_copy_if_training(model: nn.Module) -> nn.Module:
    """Return the model, or, if it is in training mode, a copy in evaluation mode, with a warning."""
    training = [module for module in model.modules() if module.training]
    if not training:
        return model
    if all(map(_only_calls_its_children, training)):  # fusing puts layers in evaluation mode into new containers
        return copy_of(model).eval()
    warn(
        "the model is in training mode; it is calibrated and converted as if eval() had been called",
        got=f"{len(training)} modules have training=True",
        hint="call model.eval() first",
    )
    return copy_of(model).eval()


def _only_calls_its_children(module: nn.Module) -> bool:
    """Tell whether a module is a container, which computes the same in either mode."""
    return type(module).forward is nn.Sequential.forward and len(module._modules) > 0


def check_target(to: str, backend: Backend, *, checked: bool = False) -> None:
    """Refuse to convert to what no pipeline makes, or to int8, and to check int8, for a backend that only simulates.

    Raises:
        UnknownNameError: ``to`` names no pipeline.
        LoweringError: the backend has no operators.
    """
    if not isinstance(to, str) or to not in CONVERT:
        raise UnknownNameError(
            "unknown kind of model to convert to",
            got=repr(to),
            expected=", ".join(CONVERT),
            hint=did_you_mean(str(to), CONVERT),
        )
    if to != "int8" and checked and not backend.has_operators:
        raise LoweringError(
            f"backend {backend.name!r} has no integer operators, whose parity check= measures",
            got=f"to={to!r}, and a batch to check on",
            expected="check=None",
            hint="compare(prepared, converted, batches) measures what rounding costs; export_onnx(..., check=True) runs"
            " each unit in the runtime",
        )
    if to != "int8":
        return
    if not backend.has_operators:
        raise LoweringError(
            f"backend {backend.name!r} has no integer operators",
            got="to='int8'",
            expected="to='reference' (integers between float operators) or to='fake_quant' (their values, in float)",
            hint="prepare with backend='cpu' for int8 on this machine",
        )
    _warn_of_missing_kernels()


@functools.cache
def _warn_of_missing_kernels() -> None:
    """Warn, once in a process, that int8 models are going to run on the Python reference, slowly, unasked."""
    status = native_status()
    if SETTINGS.kernels == "auto" and "cpu" not in status.devices:
        warn(
            "no native kernels are loaded, so int8 models run on the Python reference, slower than float",
            got=status.reason,
            hint="python -m fxquant doctor says more; FXQUANT_KERNELS=reference asks for the reference",
        )


def check_tunable(to: str, allow_uncalibrated: bool) -> None:
    """Refuse what cannot be measured in int8.

    Raises:
        InputError: another kind of model than int8 is asked for, or one without ranges.
    """
    if to != "int8":
        raise InputError("only int8 models are tuned", got=f"to={to!r}, tune=...", expected="to='int8'")
    if allow_uncalibrated:
        raise InputError(
            "a model without ranges cannot run, so it cannot be tuned",
            got="allow_uncalibrated=True, tune=...",
            hint="calibrate first, or leave tune out",
        )


def check_seed(seed: object) -> None:
    """Refuse a seed that is no whole number."""
    if not isinstance(seed, int):
        raise InputError("seed is no whole number", got=repr(seed), expected="an int")
