"""``python -m fxquant inspect``: what would become int8 in a model, and what every pass does to its graph."""

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

import fxquant as fxq
from fxquant.cli.command import Command, require
from fxquant.errors import InputError
from fxquant.passes.pipelines import CONVERT
from fxquant.registry import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--backend", default="cpu", help="what to lower to (cpu)")
    parser.add_argument("--strict", action="store_true", help="fail if anything quantizable stays float")
    parser.add_argument(
        "--to",
        default="int8",
        choices=("plan", *CONVERT),
        help="the form whose passes are shown (int8), calibrated on the input alone; plan: those of prepare, no more",
    )
    parser.add_argument("--no-passes", action="store_true", help="the coverage table alone")


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    model = load_model(options.model)
    inputs = tuple(parse_input(text) for text in options.input or ["1x3x224x224"])
    prepared = fxq.prepare(model, inputs, backend=options.backend, strict=options.strict)
    if not options.no_passes and options.to == "plan":
        fxq.print_passes(prepared)
    elif not options.no_passes:
        prepared.observe(*inputs)
        fxq.print_passes(fxq.convert(prepared, to=options.to))
    print(prepared)
    return 0


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


COMMAND = Command(
    name="inspect",
    help="what would become int8 in a model, and what each pass does to its graph",
    description="Print a diff for each pass, then the table of what becomes int8, what stays float, and why.",
    add_arguments=add_arguments,
    run=run,
)
