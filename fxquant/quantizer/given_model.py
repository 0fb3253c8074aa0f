"""Finds the float model in what a user gives: in a program of ``torch.export``, or inside what wraps a module."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from fxquant.capture.exported.program import import_program, is_exported
from fxquant.errors import InputError, warn

PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def float_model(given: Any) -> Any:
    """Return the module that is to be quantized.

    A program of ``torch.export``, or its ``module()``, becomes a traced module. Of what ``torch.compile``,
    ``DataParallel`` or ``DistributedDataParallel`` gave, also as a submodule, the module inside is taken, so that names
    are those of the model. Everything else is returned as it is; nothing is changed.

    Raises:
        InputError: the model's ``__init__`` does not call that of ``torch.nn.Module``.
        TracingError: the program was exported in training mode, or takes or gives what cannot be put back.
    """
    if is_exported(given):
        return import_program(given)
    if not isinstance(given, nn.Module):
        return given  # for others to refuse
    if "_modules" not in vars(given):
        raise InputError(
            "the model was not set up: its __init__ does not call that of torch.nn.Module",
            got=type(given).__name__,
            hint=f"super().__init__() is the first line of {type(given).__name__}.__init__",
        )
    compiled = [path for path, module in given.named_modules() if _is_compiled(module)]
    if compiled:
        warn(
            "the model is compiled; the module inside is taken",
            got="the model itself" if not compiled[0] else ", ".join(repr(path) for path in compiled),
            hint="torch.compile takes what convert and prepare_qat give",
        )
    return _unwrapped(given, {})


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules


def _inside(module: nn.Module) -> nn.Module:
    while _is_compiled(module) or isinstance(module, PARALLEL):
        module = module.get_submodule("_orig_mod" if _is_compiled(module) else "module")
    return module


def _unwrapped(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return a module, or, where something in it is wrapped, a copy that holds the same tensors and what is inside."""
    if module in done:
        return done[module]
    inner = done[module] = _inside(module)
    children = {name: None if child is None else _unwrapped(child, done) for name, child in inner._modules.items()}
    if any(children[name] is not child for name, child in inner._modules.items()):
        inner = copy.copy(inner)
        inner.__dict__["_modules"] = children
    done[module] = inner
    return inner
