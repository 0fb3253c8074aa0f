"""Reads the source of a program, and says of each name of torch.ao in it whether it moves to ``fxquant.compat``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, get_args

from fxquant.compat import numeric_suite, numeric_suite_fx
from fxquant.compat.migration import CHANGED, ELSEWHERE, HOMES, NOT_OFFERED
from fxquant.compat.quantization import OFFERED, public_names
from fxquant.graph.text_table import format_rows

Verdict = Literal["as it is", "with a change", "not"]


@dataclass(frozen=True, slots=True)
class Move:
    """One name of torch.ao at one line."""

    line: int
    name: str
    verdict: Verdict
    note: str
    """The new import, what is different, or what to use."""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """The names of torch.ao in one file, in the order of its lines."""

    names: tuple[Move, ...]

    def __str__(self) -> str:
        if not self.names:
            return "no name of torch.ao.quantization is used"
        rows = [(move.line, move.name, move.verdict, move.note) for move in self.names]
        found = [move.verdict for move in self.names]
        counts = {verdict: found.count(verdict) for verdict in get_args(Verdict)}
        table = format_rows(rows, ("line", "name", "moves", "to, or why not"), "rlll")
        return f"{table}\n{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"


def read(source: str) -> MigrationReport:
    """Return what becomes of the names of torch.ao in a source.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = ast.parse(source)
    names = {(move.line, move.name): move for move in _names(tree)}
    return MigrationReport(tuple(sorted(names.values(), key=lambda move: (move.line, move.name))))


def _names(tree: ast.Module) -> Iterator[Move]:
    aliases = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    aliases[name.asname] = name.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                if (move := _judge(f"{node.module}.{name.name}", node.lineno)) is not None:
                    yield move
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            head, _, rest = ast.unparse(node).partition(".")
            path = f"{aliases[head]}.{rest}" if head in aliases else ""
            if path and (move := _judge(path, node.lineno)) is not None:
                yield move
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Attribute) and t.attr == "qconfig" for t in node.targets
        ):
            yield Move(node.lineno, ".qconfig = ...", "as it is", "prepare reads it; prepare_fx takes a QConfigMapping")


def _judge(path: str, line: int) -> Move | None:
    """Return what becomes of a dotted name; None if it is none of torch.ao."""
    home = max((module for module in HOMES if path.startswith(f"{module}.")), key=len, default=None)
    if home is not None:
        parts = path.removeprefix(f"{home}.").split(".")
        offered = {*OFFERED, *public_names(import_module(HOMES[home]))}
        name = next((part for part in parts if part in NOT_OFFERED or part in CHANGED or part in offered), None)
        if name in NOT_OFFERED:
            return Move(line, name, "not", NOT_OFFERED[name])
        if name in CHANGED:
            return Move(line, name, "with a change", f"{HOMES[home]}: {CHANGED[name]}")
        if name is not None:
            return Move(line, name, "as it is", f"from {HOMES[home]} import {name}")
    if path in HOMES:
        return None
    for start, note in ELSEWHERE.items():
        if path == start or path.startswith(f"{start}."):
            return Move(line, path, "not", note)
    return None if home is None else Move(line, path, "not", "fxquant.compat has no such name")


def name_table() -> str:
    """Return the table of all names, as ``docs/migration.md`` has it."""
    offered = {name for module in (numeric_suite, numeric_suite_fx) for name in public_names(module)} | {*OFFERED}
    lines = ["| name | moves | what is different, or what to use |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {'with a change' if name in CHANGED else 'as it is'} | {CHANGED.get(name, '')} |"
        for name in sorted({*offered, *CHANGED} - {*NOT_OFFERED}, key=str.lower)
    ]
    lines += [f"| `{name}` | not | {note} |" for name, note in sorted({**NOT_OFFERED, **ELSEWHERE}.items())]
    return "\n".join(lines)
