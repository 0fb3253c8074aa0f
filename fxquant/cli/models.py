"""How a command line names a model and its inputs: ``torchvision:resnet18 --input 1x3x224x224``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.cli.command import require
from fxquant.errors import InputError
from fxquant.registry import did_you_mean


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """``MODEL`` and ``--input``, for every command that takes a model."""
    parser.add_argument(
        "model",
        help="torchvision:NAME, or a function that makes a model: package.module:function, or path/to/file.py:function",
    )
    parser.add_argument(
        "--input",
        action="append",
        metavar="SHAPE",
        help="shape of an input, as 1x3x224x224 (the default), with random values; once for each positional input; "
        "1x16:int64 for integers (zeros)",
    )


def inputs_from(options: argparse.Namespace) -> tuple[Tensor, ...]:
    """The inputs that ``--input`` asks for.

    Raises:
        InputError: one is no shape, or has no dtype.
    """
    return tuple(parse_input(text) for text in options.input or ["1x3x224x224"])


def load_model(spec: str) -> nn.Module:
    """Make the model that a command line names, in eval mode.

    Raises:
        InputError: there is no such module, file or function, or it gives no ``nn.Module``.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise InputError(
            "this names no model",
            got=repr(spec),
            expected="torchvision:NAME, package.module:function or path/to/file.py:function",
        )
    model = _torchvision(name) if where == "torchvision" else _function(where, name)()
    if not isinstance(model, nn.Module):
        raise InputError("what this makes is no model", at=spec, got=type(model).__name__, expected="a torch.nn.Module")
    return model.eval()


def load_function(spec: str) -> Callable[[], Any]:
    """The function or class that a command line names: ``package.module:name`` or ``path/to/file.py:name``.

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
    match = re.fullmatch(r"(\d+(?:x\d+)*)(?::(\w+))?", text)
    dtype = getattr(torch, match[2] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise InputError("this is no input", got=repr(text), expected="sizes as 1x3x224x224, and perhaps :dtype")
    shape = [int(size) for size in match[1].split("x")]
    return torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


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
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError("there is no such module", got=repr(name), hint=f"{error}; is it on PYTHONPATH?") from error
