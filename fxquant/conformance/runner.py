"""Runs tools through the cases, and shows who passes what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from fxquant.conformance.adapter import Adapter, Refusal
from fxquant.conformance.case import Case
from fxquant.graph.text_table import format_rows

Verdict = Literal["pass", "refused", "fail", "error"]

ORDER: tuple[Verdict, ...] = ("pass", "refused", "fail", "error")
"""From the best to the worst: of several paths of one tool the worst counts."""
MARKS: dict[Verdict, str] = {"pass": "✓", "refused": "–", "fail": "✗", "error": "!"}
LEGEND = "✓ passes, – has no such operator or qparams, ✗ gives another result, ! raises an error."

SHOWN = 6
"""Differing elements that are spelled out."""
LONGEST = 160
"""Characters of a tool's own error message."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one case by one path through a tool."""

    case: Case
    tool: str
    path: str
    verdict: Verdict
    detail: str = ""
    """Which elements differ, why the tool refused, or what it raised."""


@dataclass(frozen=True, slots=True)
class Results:
    """Who passes what. Print it, or write ``markdown()``."""

    cases: tuple[Case, ...]
    outcomes: tuple[Outcome, ...]
    versions: tuple[tuple[str, str], ...]
    """Each tool, and its version with the paths that were run."""

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the names, in the order of the columns."""
        return tuple(dict(self.versions))

    def worst(self, case: Case, tool: str) -> Outcome:
        """Return the worst outcome of all paths of a tool."""
        own = [outcome for outcome in self.outcomes if outcome.case is case and outcome.tool == tool]
        return max(own, key=lambda outcome: ORDER.index(outcome.verdict))

    def passed(self, tool: str) -> bool:
        """Tell whether a tool passes all cases, by all paths."""
        return all(outcome.verdict == "pass" for outcome in self.outcomes if outcome.tool == tool)

    def counts(self) -> list[list[object]]:
        """Rows of the summary: operator, number of cases, and of each tool how many it passes."""
        rows: list[list[object]] = []
        for operator, group in groupby(self.cases, key=lambda case: case.operator):
            cases = list(group)
            rows.append([operator, len(cases), *(self._count(cases, tool) for tool in self.tools)])
        return [*rows, ["all", len(self.cases), *(self._count(self.cases, tool) for tool in self.tools)]]

    def _count(self, cases: Sequence[Case], tool: str) -> str:
        verdicts = [self.worst(case, tool).verdict for case in cases]
        refused = verdicts.count("refused")
        return f"{verdicts.count('pass')}" + (f" ({refused} refused)" if refused else "")

    def failures(self) -> list[Outcome]:
        """Return the worst of each case and tool that is wrong or raised."""
        worst = [self.worst(case, tool) for case in self.cases for tool in self.tools]
        return [outcome for outcome in worst if outcome.verdict in ("fail", "error")]

    def __str__(self) -> str:
        table = format_rows(self.counts(), ("operator", "cases", *self.tools))
        lines = [f"{name} {version}" for name, version in self.versions]
        for outcome in self.failures():
            path = f" ({outcome.path})" if outcome.path else ""
            lines.append(f"{outcome.tool}{path}: {outcome.case.operator}, {outcome.case.name}: {outcome.detail}")
        return "\n".join([table, *lines])

    def markdown(self) -> str:
        """Return a table of the operators, one of all cases, and what is wrong in each."""
        heads = ("operator", "cases", *self.tools)
        rows = [
            (case.operator, case.name, case.why, *(MARKS[self.worst(case, tool).verdict] for tool in self.tools))
            for case in self.cases
        ]
        wrong = [
            f"* {outcome.tool}, {outcome.case.operator}, {outcome.case.name}: {_code(outcome.detail)}"
            for outcome in self.failures()
        ]
        return "\n".join(
            [
                *(f"* {name}: {version}" for name, version in self.versions),
                "",
                _table(heads, self.counts()),
                "",
                "## Case by case",
                "",
                LEGEND,
                "",
                _table(("operator", "case", "what is looked at", *self.tools), rows),
                "",
                "## What is different",
                "",
                *(wrong or ["Nothing."]),
                "",
            ]
        )


def run_cases(cases: Sequence[Case], adapters: Sequence[Adapter]) -> Results:
    """Give every case to every tool."""
    outcomes = [_outcome(case, adapter) for adapter in adapters for case in cases]
    versions: dict[str, str] = {}
    for name, group in groupby(adapters, key=lambda adapter: adapter.name):
        of_tool = list(group)
        paths = ", ".join(adapter.path for adapter in of_tool if adapter.path)
        versions[name] = of_tool[0].version + (f" ({paths})" if paths else "")
    return Results(tuple(cases), tuple(outcomes), tuple(versions.items()))


def _outcome(case: Case, adapter: Adapter) -> Outcome:
    verdict: Verdict
    try:
        got = adapter.run(case)
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        verdict, detail = "error", message[:LONGEST]
    else:
        verdict, detail = _judged(case, got)
    return Outcome(case, adapter.name, adapter.path, verdict, detail)


def _judged(case: Case, got: Tensor | Refusal) -> tuple[Verdict, str]:
    if isinstance(got, Refusal):
        return "refused", got.reason
    expected, found = case.expected.flatten(), got.detach().cpu().to(torch.float64).flatten()
    if tuple(got.shape) != tuple(case.expected.shape):
        return "fail", f"shape {list(got.shape)}, expected {list(case.expected.shape)}"
    wrong = torch.nonzero(found != expected).flatten().tolist()  # NaN differs from everything
    if not wrong:
        return "pass", ""
    shown = ", ".join(f"[{index}] {float(found[index]):g}, not {float(expected[index]):g}" for index in wrong[:SHOWN])
    return "fail", f"{len(wrong)} of {len(expected)} differ: {shown}{', …' if len(wrong) > SHOWN else ''}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39)).replace('|', '/')}`"
