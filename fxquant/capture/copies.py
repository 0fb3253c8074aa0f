"""Copies of the user's model, which is never changed, and what a graph that is made from one keeps of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from fxquant.capture.untraceable import fault_of
from fxquant.errors import FxQuantError, InputError, TracingError
from fxquant.graph.failures import first_line
from fxquant.graph.inputs import describe_call, signature_of
from fxquant.graph.methods import UNUSED_MODULES, UsersClass, unused_modules
from fxquant.graph.module import USERS_CLASS
from fxquant.graph.own_forwards import copy_own_forwards
from fxquant.graph.query import own_forward

_ROOT_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
)


def check_unscripted(model: nn.Module) -> None:
    """Refuse a model that is scripted, or has a submodule that is.

    Raises:
        TracingError: it is one.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TracingError(
                f"the {f'submodule {path!r}' if path else 'model'} is a ScriptModule, whose Python code is gone",
                got=type(module).__name__,
                expected="the torch.nn.Module that torch.jit.script or torch.jit.trace was given",
                hint="build the float model from its class, and model.load_state_dict(scripted.state_dict())",
            )


def copy_of(model: nn.Module, *, shares_parameters: bool = False) -> nn.Module:
    """A deep copy. Attributes that autograd computed (weights, by weight norm), which it would refuse, are detached.

    Args:
        model: It is not changed.
        shares_parameters: Let the copy have the model's own parameters; buffers are copied all the same. This takes a
            tenth of the time, and is for a copy that is called once or twice: a forward changes buffers, if anything.

    Raises:
        TracingError: something cannot be copied; the message names the attribute.
    """
    attributes = [value for module in model.modules() for value in vars(module).values()]
    computed = {
        id(value): value.detach().clone() for value in attributes if isinstance(value, Tensor) and not value.is_leaf
    }
    shared = {id(parameter): parameter for parameter in model.parameters()} if shares_parameters else {}
    memo: dict[int, Any] = {**computed, **shared}
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        culprit = _uncopiable(model)
        raise TracingError(
            "the model cannot be copied (copy.deepcopy fails)" + (f" because of {culprit}" if culprit else ""),
            got=f"{type(error).__name__}: {error}",
            expected="a model that copy.deepcopy can copy: your own model is never changed, so a copy is needed",
            hint="delete or replace that attribute first, or give its class a __deepcopy__" if culprit else "",
        ) from error
    copy_own_forwards(model, memo)
    return copied


def check_runs(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: TracingError) -> None:
    """Refuse example inputs on which the model itself fails, which is then the cause of an error in a trace.

    Raises:
        InputError: it says what the model raises, and in which line of the user's.
    """
    given, named = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), (args, dict(kwargs)))
    copied = copy_of(model, shares_parameters=True)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            copied(*given, **named)
    except FxQuantError:  # what tracing left behind is no fault of the model
        return
    except Exception as failure:
        line, _ = fault_of(failure)
        if line:
            raise InputError(
                "the model itself does not run on the example inputs",
                at=line,
                got=f"{type(failure).__name__}: {first_line(failure)}",
                hint=f"{type(model).__name__}.forward raises this in float too: model(*example_inputs) shows where",
            ) from error
        raise InputError(
            f"the example inputs do not run through the model: {first_line(failure)}",
            got=describe_call(args, kwargs),
            expected=f"{type(model).__name__}.forward{signature_of(model)}",
            hint="example_inputs (--input of a command) must be inputs that the model itself can run on",
        ) from error


def _uncopiable(model: nn.Module) -> str | None:
    """Return a phrase that names the first attribute that cannot be copied by itself."""
    for path, module in model.named_modules():
        for name, value in {**module._parameters, **module._buffers, **vars(module)}.items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                where = f"{path}.{name}" if path else name
                return f"its attribute {where!r}, a {type(value).__name__}"
    return None


def runs_its_graph(model: nn.Module) -> bool:
    """Tell whether a model is a GraphModule, and no other forward was set on it."""
    return isinstance(model, GraphModule) and own_forward(model) is None


def trained_copy(model: nn.Module) -> nn.Module | None:
    """Return a copy in training mode, of a model with a ``train`` of the user's own; None where there is none."""
    if not any(map(_has_own_train, model.modules())):
        return None
    copied = copy_of(model)
    inner = list(copied.modules())
    for module in inner:  # one that was set, and holds the model that was copied
        own = vars(module).get("train")
        if own is not None and not any(getattr(own, "__self__", None) is each for each in inner):
            del module.train
    try:
        copied.train()
    except Exception:  # a model that is never to train, by its own word
        return None
    return copied


def _has_own_train(module: nn.Module) -> bool:
    own = "train" in vars(module) or type(module).train is not nn.Module.train
    return own and not isinstance(module, GraphModule)


def carry_over(model: nn.Module, gm: GraphModule) -> None:
    """Give a graph module what torch.fx leaves out: attributes, class, hooks, modes, non-persistent buffers."""
    for name, value in vars(model).items():
        # The attribute of a tensor made in forward would hide the buffer of the graph; or an earlier trace left it.
        # A method that was set on the model (a forward that calls it, say) would run in place of the graph's.
        hides = callable(value) and callable(getattr(GraphModule, name, None))
        if name not in gm._buffers and not name.startswith("_tensor_constant") and not hides:
            vars(gm).setdefault(name, value)
    if not isinstance(model, GraphModule):  # such a class holds nothing of the user's
        vars(gm)[USERS_CLASS] = UsersClass(parametrize.type_before_parametrizations(model))
    vars(gm)[UNUSED_MODULES] = unused_modules(model, gm)
    for name in _ROOT_HOOKS:
        if name in vars(model):
            setattr(gm, name, vars(model)[name])
    originals = dict(model.named_modules(remove_duplicate=False))
    for path, module in gm.named_modules(remove_duplicate=False):
        original = originals.get(path)
        if original is None or original is module:
            continue
        module.training = original.training
        for name in module._buffers:
            if name not in original._buffers:  # a plain tensor attribute, which GraphModule makes a buffer
                module._non_persistent_buffers_set.add(name)
