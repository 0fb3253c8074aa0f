"""What a command of the command line is."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from fxquant.errors import SampleError


@dataclass(frozen=True, slots=True)
class Command:
    """One row of ``python -m fxquant --help``."""

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Does the work and returns the exit status."""


def require(*modules: str, extra: str = "examples") -> None:
    """Raise an error with a hint where a package of an optional extra is missing.

    Raises:
        SampleError: names what is missing and how to install it.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SampleError(
            "this needs packages that fxquant itself does without",
            got=f"no {', '.join(missing)}",
            hint=f"pip install 'fxquant[{extra}]'",
        )
