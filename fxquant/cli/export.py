"""``python -m fxquant export``: a model, quantized and written to a file for another process or another runtime."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.artifact.format import check_place, written_beside
from fxquant.cli.data import data_from
from fxquant.cli.models import inputs_from
from fxquant.cli.subject import prepared_from, subject_from
from fxquant.errors import writing


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    path = options.output or Path(f"model.{options.to}")
    check_place(path, options.overwrite, option="--overwrite")
    subject, data = subject_from(options), data_from(options)
    if subject.form == "converted":
        print(write(subject.model, path, inputs_from(options), {}, options))
        return 0
    ready = prepared_from(options, subject, data, backend=options.target if options.to == "onnx" else None)
    ready.calibrate()
    print(ready.quantizer)
    converted = fxq.convert(ready.quantizer, to="reference" if options.to == "onnx" else "int8")
    print(write(converted, path, ready.args_of_file, ready.kwargs, options))
    if caution := ready.caution(measured=False):
        print(caution)
    return 0


def write(
    model: GraphModule, path: Path, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: argparse.Namespace
) -> str:
    """Write the file, and return what to say of it."""
    if options.to == "fxq":
        fxq.save(model, path, overwrite=options.overwrite)
        return f"{path}\n{fxq.inspect_artifact(path)}"
    args, shapes = _open_batches(args) if options.dynamic_batch else (args, None)
    if options.to == "onnx":
        report = fxq.export_onnx(
            model,
            path,
            args,
            target=options.target,
            example_kwargs=kwargs,
            dynamic_shapes=shapes,
            check=not options.no_check,
            overwrite=options.overwrite,
        )
        return str(report)
    program = fxq.export(model, args, example_kwargs=kwargs, dynamic_shapes=shapes)
    with writing("the program", path), written_beside(path) as part, open(part, "wb") as file:
        torch.export.save(program, file)
    return f"{path}: {path.stat().st_size / 1e6:.1f} MB, for torch.export.load"


def _open_batches(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return inputs of two samples where there was one, which torch.export would take for a fixed size, and shapes."""
    batch = torch.export.Dim("batch")
    open_ = [isinstance(value, Tensor) and value.dim() > 0 for value in args]
    doubled = [torch.cat([x, x]) if has and len(x) == 1 else x for x, has in zip(args, open_, strict=True)]
    return tuple(doubled), tuple({0: batch} if has else None for has in open_)
