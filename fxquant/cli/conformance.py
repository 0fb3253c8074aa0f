"""``python -m fxquant conformance``: who gets the numerics of quantization right, case by case."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fxquant.cli.models import load_function
from fxquant.conformance.case import load_cases
from fxquant.conformance.own import own_adapters
from fxquant.conformance.runner import Results, run_cases
from fxquant.errors import InputError, writing

BEGIN = "<!-- python -m fxquant conformance --markdown writes what follows -->"
"""Above this, a file that is written again keeps its text."""


def run(options: argparse.Namespace) -> int:
    results = conformance(options)
    print(results)
    if options.markdown is not None:
        _write(options.markdown, results)
    return 0 if "fxquant" not in results.tools or results.passed("fxquant") else 1


def _write(path: Path, results: Results) -> None:
    with writing("the tables", path, hint="--markdown FILE names a file"):
        before = path.read_text("utf-8").partition(BEGIN)[0] if path.exists() else ""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{before}{BEGIN}\n\n{results.markdown()}", encoding="utf-8")


def conformance(options: argparse.Namespace) -> Results:
    """Run what the command line asks for.

    Raises:
        InputError: there is no such adapter, tool or operator.
    """
    adapters: list[Any] = [*own_adapters(), *(load_function(spec)() for spec in options.adapter)]
    for spec, adapter in zip(options.adapter, adapters[len(adapters) - len(options.adapter) :], strict=True):
        if missing := [name for name in ("name", "version", "path", "run") if not hasattr(adapter, name)]:
            raise InputError(
                "this makes no adapter",
                at=spec,
                got=f"{type(adapter).__name__} without {', '.join(missing)}",
                expected="a class as fxquant/conformance/adapter.py says",
            )
    names = list(dict.fromkeys(adapter.name for adapter in adapters))
    for name in options.tool or ():
        if name not in names:
            raise InputError(
                "no such tool", got=repr(name), expected=", ".join(names), hint="--adapter FILE.py:CLASS adds one"
            )
    cases = load_cases()
    if options.operator is not None:
        operators = dict.fromkeys(case.operator for case in cases)
        cases = tuple(case for case in cases if case.operator == options.operator)
        if not cases:
            raise InputError("no such operator", got=repr(options.operator), expected=", ".join(operators))
    return run_cases(cases, [each for each in adapters if not options.tool or each.name in options.tool])
