"""Keeps what each pass did as text, and prints it: a line per pass, diffs, whole graphs, files, through ``logging``."""

from __future__ import annotations

import html
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from torch.fx import GraphModule

from fxquant.errors import InputError
from fxquant.graph.module import get_metadata
from fxquant.graph.printer import WIDTH, coloured, diff, folded, format_graph, format_table, shows_colour
from fxquant.graph.text_table import format_rows
from fxquant.passes.base import PassContext
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Fixed, Observed, QParams, SharedWith, TensorRef
from fxquant.settings import Settings, debug_output, read_settings

logger = logging.getLogger("fxquant")

_COLOURS = {"- ": "#c45500", "+ ": "#0072b2"}
"""In notebooks: told apart by the colour-blind, and legible on white and on black."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pass, as text. Text and not a GraphModule: weights are not kept alive, and it can be compared and saved."""

    index: int
    """Place in the order of everything that was run, from 0: conversion counts on from preparation."""
    name: str
    before: str
    """The graph, as ``graph.printer.format_graph`` prints it."""
    after: str
    seconds: float
    step: int = 1
    """Place in its own pipeline, from 1."""
    steps: int = 1
    """Length of that pipeline."""

    @property
    def changed(self) -> bool:
        """Tell whether the graph reads differently."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the lines that changed, at most 100 columns wide: ``- `` before, ``+ `` after."""
        return diff(self.before, self.after)

    def _repr_html_(self) -> str:
        lines = [
            f'<span style="color: {_COLOURS.get(line[:2], "inherit")}">{html.escape(line)}</span>'
            for line in (self.diff() or "  (nothing)").splitlines()
        ]
        return f"<b>{html.escape(self.title())}</b><pre>" + "\n".join(lines) + "</pre>"

    @property
    def counts(self) -> tuple[int, int]:
        """Lines added and removed."""
        lines = self.diff().splitlines()
        return sum(line.startswith("+ ") for line in lines), sum(line.startswith("- ") for line in lines)

    def title(self) -> str:
        """``[2/4] annotate  +0 -0  3.1 ms``."""
        added, removed = self.counts
        return f"[{self.step}/{self.steps}] {self.name}  +{added} -{removed}  {self.seconds * 1e3:.1f} ms"


Instrument = Callable[[Snapshot, GraphModule, PassContext], None]
"""Called after each pass; it looks, and changes nothing."""


def instruments_for(settings: Settings) -> tuple[Instrument, ...]:
    """Return the instruments that the environment asks for.

    The line per pass is always there: it goes to ``logging.getLogger("fxquant")`` at level INFO, which nobody hears
    unless the application or FXQUANT_DEBUG listens.
    """
    chosen: list[Instrument] = [log_pass]
    if settings.debug >= 2:
        chosen.append(log_diff)
    chosen.append(PlanLog())
    if settings.print_after:
        chosen.append(log_graph_after(settings.print_after))
    if settings.dump_dir:
        chosen.append(dump_into(Path(settings.dump_dir)))
    return tuple(chosen)


def log_table(table: object) -> None:
    """Log a table at level INFO, like the line per pass; it is put into words only where somebody listens."""
    with debug_output(read_settings()):
        logger.info("%s", table)


def log_pass(snapshot: Snapshot, gm: GraphModule, ctx: PassContext) -> None:
    """``[2/4] annotate  +0 -0  3.1 ms``."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", snapshot.title())


def log_diff(snapshot: Snapshot, gm: GraphModule, ctx: PassContext) -> None:
    """Log what the pass changed, with the qparams of each value where they are known; in colour on a terminal.

    What repeats is folded, unless the log shows DEBUG records too.
    """
    if snapshot.changed and logger.isEnabledFor(logging.INFO):
        text = _change(snapshot, qparams_notes(ctx.plan), every_line=logger.isEnabledFor(logging.DEBUG))
        logger.info("%s", coloured(text) if shows_colour(sys.stderr) else text)


class PlanLog:
    """Logs the plan, as a table, each time that a pass has changed it."""

    def __init__(self) -> None:
        self._seen: QuantPlan | None = None

    def __call__(self, snapshot: Snapshot, gm: GraphModule, ctx: PassContext) -> None:
        plan = ctx.plan
        if plan is self._seen or not (plan.units or plan.refusals):
            return
        self._seen = plan
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", format_plan(plan))


def log_graph_after(names: tuple[str, ...]) -> Instrument:
    """Logs the whole graph, as a table, after the passes ``names``."""

    def instrument(snapshot: Snapshot, gm: GraphModule, ctx: PassContext) -> None:
        if snapshot.name in names:
            logger.info("the graph after %s:\n%s", snapshot.name, format_table(gm, qparams_notes(ctx.plan)))

    return instrument


def dump_into(folder: Path) -> Instrument:
    """Writes ``003_annotate.txt`` into ``folder``, which is made: the graph before and after, and the diff.

    The number is the next one that is free in the folder: nothing there is overwritten, whatever ran before.
    """

    def instrument(snapshot: Snapshot, gm: GraphModule, ctx: PassContext) -> None:
        sections = (
            ("before", snapshot.before),
            ("after", format_graph(gm, qparams_notes(ctx.plan))),
            ("diff", snapshot.diff() or "(nothing)"),
        )
        text = "\n\n".join(f"# {name}\n{body}" for name, body in (("pass", snapshot.title()), *sections))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _new_file(folder, snapshot.name) as file:
                file.write(text + "\n")
        except OSError as error:
            raise InputError(
                "the folder of FXQUANT_DUMP_DIR cannot be used",
                got=f"{folder}: {error.strerror}",
                expected="a folder that can be made and written to",
            ) from error

    return instrument


def _new_file(folder: Path, name: str) -> TextIO:
    """Return a file of the next number that no other process takes meanwhile."""
    while True:
        with suppress(FileExistsError):
            return (folder / f"{_next_number(folder):03d}_{name}.txt").open("x", encoding="utf-8")


def _next_number(folder: Path) -> int:
    """Return one more than the highest that begins the name of a file there."""
    numbers = [path.name.partition("_")[0] for path in folder.glob("*_*.txt")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


def qparams_notes(plan: QuantPlan) -> dict[str, str]:
    """Node name -> qparams in a few characters: ``uint8 s=0.0235 z=114`` once calibrated, else where they come from."""
    notes = {ref.name: _policy(policy) for ref, policy in plan.policies.items() if ref.kind == "activation"}
    return notes | {ref.name: _qparams(qparams) for ref, qparams in plan.qparams.items() if ref.kind == "activation"}


def _qparams(qparams: QParams) -> str:
    kind = f"{'int' if qparams.scheme.signed else 'uint'}{qparams.scheme.bits}"
    if qparams.scale.numel() != 1:
        return f"{kind} x{qparams.scale.numel()}"
    return f"{kind} s={float(qparams.scale):.4g} z={int(qparams.zero_point)}"


def _policy(policy: Any) -> str:
    if isinstance(policy, SharedWith):
        return f"qparams of {policy.source.name}" + (f" x {policy.factor:g}" if policy.factor != 1 else "")
    if isinstance(policy, Fixed):
        return _qparams(policy.qparams)
    return "observed" if isinstance(policy, Observed) else ""


def with_notes(diff: str, notes: dict[str, str]) -> str:
    """Put the notes after the lines of a diff that define their nodes; in a line of its own where there is no room.

    A type that stands before the shape is not said again, and what is padded moves together if that makes room.
    They are of the graph as it is now, so a line that went (``- ``) gets none: its node may have had other qparams.
    """
    lines: list[str] = []
    rows = diff.splitlines()
    note = ""
    for row, following in zip(rows, [*rows[1:], ""], strict=True):
        name, equals, _ = row[2:].partition(" = ")
        if not row[2:].startswith(" "):
            note = notes.get(name, "") if equals and row.startswith("+ ") else ""
        if note and not following.startswith("+  "):  # else the node goes on in the next line
            lines += _noted(row, note)
        else:
            lines.append(row)
    return "\n".join(lines)


def _noted(line: str, note: str) -> list[str]:
    left, gap, value = line.rpartition("  ")
    kind, _, rest = note.partition(" ")
    said = gap and value.startswith(f"{kind}[")
    note = rest if said else note
    if len(line) + 2 + len(note) <= WIDTH:
        return [f"{line}  {note}"]
    right = f"{value}  {note}"
    left = left.rstrip()
    if gap and len(left) + 2 + len(right) <= WIDTH:
        return [f"{left}{right:>{WIDTH - len(left)}}"]
    return [line, f"{line[:2]}        {note}"]


def format_plan(plan: QuantPlan) -> str:
    """Return the plan as two tables: units with their qparams, and what was refused with the reason."""
    qparams = qparams_notes(plan)
    units = [
        (
            unit.root,
            unit.pattern,
            " ".join(unit.nodes[:-1]),
            _roles(unit.inputs, unit.roles),
            qparams.get(unit.root, ""),
        )
        for unit in plan.units
    ]
    text = format_rows(units, ("unit", "pattern", "with", "reads", "qparams")) if units else "no unit"
    refused = [(item.node, item.pattern, item.reason) for item in plan.refusals]
    return text + ("\n\n" + format_rows(refused, ("stays float", "pattern", "reason")) if refused else "")


def _roles(inputs: Iterable[str], roles: Any) -> str:
    return " ".join(roles[name].name for name in inputs if isinstance(roles.get(name), TensorRef))


def _change(snapshot: Snapshot, notes: dict[str, str], *, every_line: bool) -> str:
    """Return the diff of a pass, as it is printed. What is folded gets no notes, so folding comes first."""
    text = snapshot.diff()
    return with_notes(text if every_line else "\n".join(folded(text.splitlines())), notes)


class HasSnapshots(Protocol):
    """A Quantizer, or a converted model."""

    snapshots: tuple[Snapshot, ...]


def print_passes(prepared: HasSnapshots | Any, *, file: TextIO | None = None, every_line: bool = False) -> None:
    """Print what each pass did: its line, and the lines of the graph that it changed, at most 100 columns wide.

    Behind a line that is new stand the qparams of its value, as they are in the end: of a model that is not calibrated,
    where it will come from.

    Args:
        prepared: What ``prepare`` or ``convert`` gave. A converted model shows the passes of both.
        file: Where to; None: standard output. In colour if that is a terminal, and NO_COLOR is not set.
        every_line: Print blocks too that read like an earlier one but for numbers in names and shapes, and for the
            nodes that they read; else these are told in one line.

    Raises:
        InputError: ``prepared`` keeps no passes.
    """
    out = sys.stdout if file is None else file
    paint: Callable[[str], str] = coloured if shows_colour(out) else str
    plan = get_metadata(prepared, "quant_plan") or getattr(prepared, "plan", None)
    notes = qparams_notes(plan) if isinstance(plan, QuantPlan) else {}
    snapshots = get_metadata(prepared, "snapshots") or getattr(prepared, "snapshots", None)
    if snapshots is None:
        raise InputError(
            "print_passes takes what prepare or convert gave",
            got=type(prepared).__name__,
            hint="print_passes(prepare(model, example_inputs))",
        )
    for snapshot in snapshots:
        print(snapshot.title(), file=out)
        if snapshot.changed:
            print(paint(_change(snapshot, notes, every_line=every_line)), file=out)
