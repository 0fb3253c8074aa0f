"""Finds the model and the inputs that a command line names: ``torchvision:resnet18 --input 1x3x224x224``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.cli.command import require
from fxquant.errors import FxQuantError, InputError, is_library_file
from fxquant.graph.failures import first_line
from fxquant.registry import did_you_mean

USER_ERRORS = (Exception, SystemExit)
"""What code of the user's may raise; a program that ends itself must not end this one."""


def inputs_from(options: argparse.Namespace) -> tuple[Tensor, ...]:
    """Return the inputs that ``--input`` asks for.

    Raises:
        InputError: one is no shape, or has no dtype.
    """
    return tuple(parse_input(text) for text in options.input or ["1x3x224x224"])


def is_of_zoo(spec: str) -> bool:
    """Tell whether a command line names a network of a library, whose weights are random."""
    return spec.partition(":")[0] in _ZOOS


def load_model(spec: str) -> nn.Module:
    """Make the model that a command line names, or take it where the name is that of a module; in eval mode.

    Raises:
        InputError: there is no such module, file or name, or what has it is no ``nn.Module`` and makes none.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise InputError(
            "this names no model",
            got=repr(spec),
            expected="torchvision:NAME, timm:NAME, package.module:function, path/to/file.py:function or a .fxq file",
        )
    make = _ZOOS.get(where)
    model = make(name) if make is not None else _model_of_users(spec, where, name)
    if not isinstance(model, nn.Module):
        raise InputError("what this makes is no model", at=spec, got=type(model).__name__, expected="a torch.nn.Module")
    return model.eval()


def _model_of_users(spec: str, where: str, name: str) -> Any:
    found = _function(where, name)
    if isinstance(found, nn.Module):
        return found
    return call_of_users(spec, found, "makes a model", "making the model failed")


def load_function(spec: str) -> Callable[[], Any]:
    """Return the function or class that a command line names: ``package.module:name`` or ``path/to/file.py:name``.

    Raises:
        InputError: there is no such module, file or name.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise InputError("this names nothing", got=repr(spec), expected="package.module:name or path/to/file.py:name")
    return _function(where, name)


def parse_input(text: str) -> Tensor:
    """``1x3x224x224`` as random float32, ``1x16:int64`` as zeros of that dtype.

    Raises:
        InputError: it is no shape, or no dtype.
    """
    match = re.fullmatch(r"([1-9]\d*(?:x[1-9]\d*)*)(?::(\w+))?", text)
    dtype = getattr(torch, match[2] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        expected = "sizes of 1 or more, as 1x3x224x224, and perhaps :dtype"
        raise InputError("this is no input", got=repr(text), expected=expected)
    shape = [int(size) for size in match[1].split("x")]
    try:
        return torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
    except (RuntimeError, TypeError, OverflowError) as error:  # too large, or of a dtype that has no random numbers
        raise InputError(
            "no input of this size and dtype can be made", got=repr(text), hint=first_line(error)
        ) from error


def _torchvision(name: str) -> nn.Module:
    require("torchvision")
    from torchvision import models

    known = models.list_models()
    if name not in known:
        raise InputError("torchvision has no such model", got=repr(name), hint=did_you_mean(name, known))
    arguments: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        arguments["weights_backbone"] = None  # or torchvision would fetch them
    return models.get_model(name, weights=None, **arguments)


def _timm(name: str) -> nn.Module:
    require("timm", extra="timm")
    import timm

    known = timm.list_models()
    if name not in known:
        raise InputError("timm has no such model", got=repr(name), hint=did_you_mean(name, known))
    model: nn.Module = timm.create_model(name, pretrained=False)
    return model


_ZOOS: dict[str, Callable[[str], nn.Module]] = {"torchvision": _torchvision, "timm": _timm}
"""What may stand before the colon -> what makes a model of the name after it."""


def call_of_users(spec: str, function: Callable[[], Any], does: str, failure: str) -> Any:
    """Call a function of the user's, and return what it gives.

    Args:
        spec: How the command line names it.
        function: What to call.
        does: What it is called for, for messages: ``"makes a model"``.
        failure: What the message of its failure begins with.

    Raises:
        InputError: it wants arguments, or fails.
    """
    name = getattr(function, "__name__", spec.rpartition(":")[2])
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(
            f"a function that {does} is called without arguments",
            at=spec,
            got=f"{name}{inspect.signature(function)}",
            expected="a function whose arguments have defaults",
            hint=f"def make(): return {name}(…), and name that",
        ) from error
    except ValueError:  # written in C: it has no signature
        pass
    try:
        return function()
    except FxQuantError:
        raise
    except USER_ERRORS as error:
        raise failed(failure, error) from error


def failed(what: str, error: BaseException) -> InputError:
    """Return the error for what went wrong in a file of the user's, with the line."""
    lines = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    own = [line for line in lines if not is_library_file(line) and "importlib" not in line]
    if isinstance(error, SyntaxError) and error.filename:
        own.append(f"{error.filename}:{error.lineno}")
    return InputError(what, at=own[-1] if own else None, got=f"{type(error).__name__}: {error}")


def _function(where: str, name: str) -> Callable[[], Any]:
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{where} has no function of that name", got=repr(name), hint=did_you_mean(name, own))
    return function


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError("there is no such file", got=str(path))
    spec = importlib.util.spec_from_file_location(f"_inspected_{path.stem}", path)
    assert spec is not None  # every .py file has a spec
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up there
    try:
        spec.loader.exec_module(module)
    except USER_ERRORS as error:
        raise failed("the file does not run", error) from error
    return module


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError("there is no such module", got=repr(name), hint=f"{error}; is it on PYTHONPATH?") from error
    except USER_ERRORS as error:
        raise failed(f"the module {name} does not run", error) from error
