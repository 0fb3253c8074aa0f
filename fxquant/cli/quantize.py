"""``python -m fxquant quantize``: from a model, its weights and a folder of images to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import fxquant as fxq
from fxquant.artifact.format import check_place
from fxquant.cli.accuracy import measure_accuracy
from fxquant.cli.data import data_from
from fxquant.cli.export import write
from fxquant.cli.fewer_bits import calibrated, check_options
from fxquant.cli.subject import Ready, prepared_from, refuse_converted, subject_from
from fxquant.cli.torchrun import started_by_torchrun
from fxquant.commandline import FILES
from fxquant.errors import InputError, writing
from fxquant.reporting.page import file_to_write


def run(options: argparse.Namespace) -> int:
    with started_by_torchrun() as rank:
        return _run(options, rank)


def _run(options: argparse.Namespace, rank: int) -> int:
    # 1. Everything that can be refused is looked at before anything takes its time.
    torch.manual_seed(0)
    check_place(options.output, options.overwrite, option="--overwrite")
    options.to = options.to or _kind_of(options.output)
    _check_report(options)
    subject = subject_from(options)
    refuse_converted(subject, "quantize")
    data = data_from(options)
    if data is None and subject.form != "prepared":
        raise InputError(
            "quantize needs data to measure ranges on",
            got="no --data",
            expected="a folder of images, or FILE.py:function, which yields batches",
        )
    budget = check_options(options, subject, data)
    print(data.about if data is not None else f"{subject.spec}: with its own ranges", flush=True)

    # 2. Prepare, calibrate, with fewer bits if that is asked for, convert and measure: ranks share the batches.
    ready = prepared_from(options, subject, data, backend=options.target if options.to == "onnx" else options.backend)
    if data is None and not ready.calibrated:
        raise InputError("this file holds no ranges, and quantize needs data", at=subject.spec, got="no --data")
    with fxq.share_work():
        ready, tables = calibrated(options, subject, ready, budget)
        converted = fxq.convert(ready.quantizer, to="reference" if options.to == "onnx" else "int8")
        print(f"\n{ready.quantizer}\n")
        _print_accuracy(ready, converted)
    if rank > 0:
        return 0

    # 3. Write, report.
    print(write(converted, options.output, ready.args_of_file, ready.kwargs, options))
    if options.report is not None:
        page = fxq.report(
            ready.quantizer, options.report, ready.batches() if data is not None else None, results=tables
        )
        print(f"{page}: opens in any browser")
    if caution := ready.caution(measured=False):
        print(caution)
    return 0


def _kind_of(output: Path) -> str:
    if (kind := output.suffix[1:].lower()) in FILES:
        return kind
    raise InputError(
        "the name of the file does not say what kind of file is written",
        at=str(output),
        got=output.suffix or "a name without an ending",
        expected=", ".join(f".{kind}" for kind in FILES),
        hint="--to says the kind of a file of another name",
    )


def _check_report(options: argparse.Namespace) -> None:
    if options.report is None:
        return
    page = file_to_write(options.report)
    if page.resolve() == options.output.resolve():
        raise InputError("the report cannot be the file of the model", got=str(page), expected="another name")
    with writing("the report", page):
        page.parent.mkdir(parents=True, exist_ok=True)


def _print_accuracy(ready: Ready, converted: torch.fx.GraphModule) -> None:
    if ready.data is None:
        return
    found = measure_accuracy(ready.quantizer.graph_module, converted, ready.data, ready.args)
    print(f"accuracy was not measured: {found}\n" if isinstance(found, str) else f"{found}\n", flush=True)
