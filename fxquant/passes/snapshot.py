"""What a pass did, as text."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import GraphModule

from fxquant.graph.printer import diff
from fxquant.passes.base import PassContext

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
        """Whether the graph reads differently."""
        return self.before != self.after

    def diff(self) -> str:
        """The lines that changed, at most 100 columns wide: ``- `` before, ``+ `` after."""
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
