"""``python -m fxquant demo``: see the whole of it work on a real network."""

from __future__ import annotations

import argparse

from fxquant.cli.command import require


def run(options: argparse.Namespace) -> int:
    require("torchvision", "PIL", "matplotlib")
    from fxquant.demo.story import run_demo

    run_demo(options.weights, options.output, options.rounds)
    return 0
