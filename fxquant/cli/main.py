"""Parses ``python -m fxquant COMMAND …`` and runs the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fxquant.cli import bench, conformance, demo, doctor, inspect, report
from fxquant.errors import FxQuantError

COMMANDS = (demo.COMMAND, inspect.COMMAND, bench.COMMAND, report.COMMAND, conformance.COMMAND, doctor.COMMAND)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 done, 1 a clear error (printed on stderr), 2 arguments that make no sense, 130 interrupted.
    """
    options = parser().parse_args(argv)
    try:
        return options.run(options)
    except FxQuantError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m fxquant", description="Quantize PyTorch models, pass by pass.")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.help, description=command.description)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return top
