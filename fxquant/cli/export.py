"""``python -m fxquant export``: a model, quantized and written to a file for another process or another runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.artifact.format import check_place, written_beside
from fxquant.cli.command import RANDOM
from fxquant.cli.models import inputs_from, load_model
from fxquant.errors import writing


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    path = options.output or Path(f"model.{options.to}")
    check_place(path, options.overwrite)
    model = load_model(options.model)
    inputs = inputs_from(options)
    backend = options.target if options.to == "onnx" else "cpu"
    prepared = fxq.prepare(model, inputs, backend=backend)
    prepared.observe(*inputs)
    print(prepared)
    converted = fxq.convert(prepared, to="reference" if options.to == "onnx" else "int8")
    print(write(converted, path, inputs, options))
    print(RANDOM)
    return 0


def write(model: GraphModule, path: Path, inputs: tuple[Tensor, ...], options: argparse.Namespace) -> str:
    """Write the file, and return what to say of it."""
    if options.to == "onnx":
        check, overwrite = not options.no_check, options.overwrite
        return str(fxq.export_onnx(model, path, inputs, target=options.target, check=check, overwrite=overwrite))
    if options.to == "fxq":
        fxq.save(model, path, overwrite=options.overwrite)
        return str(fxq.inspect_artifact(path))
    program = fxq.export(model, inputs)
    with writing("the program", path), written_beside(path) as part, open(part, "wb") as file:
        torch.export.save(program, file)
    return f"{path}: {path.stat().st_size / 1e6:.1f} MB, for torch.export.load"
