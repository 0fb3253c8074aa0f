"""Parses ``python -m fxquant COMMAND …`` and runs the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from fxquant.commandline import parser
from fxquant.errors import FxQuantError, layout


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 done, 1 a clear error (printed on stderr), 2 arguments that make no sense, 130 interrupted.
    """
    options = parser().parse_args(argv)
    try:
        return runner(options.command)(options)
    except FxQuantError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        what = "a file or a folder cannot be used"
        print(f"InputError: {layout(what, at=error.filename, got=error.strerror or error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def runner(command: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that does the work of a command, and answers with the exit status."""
    run: Callable[[argparse.Namespace], int] = import_module(f"fxquant.cli.{command}").run
    return run


if __name__ == "__main__":
    sys.exit(main())
