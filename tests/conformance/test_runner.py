"""What the runner makes of tools that are right, wrong, unable or broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.conformance.adapter import Adapter, Refusal
from fxquant.conformance.case import Case, load_cases
from fxquant.conformance.runner import run_cases


class Tool:
    """Gives whatever a function gives."""

    def __init__(self, name: str, path: str, answer: Any) -> None:
        self.name, self.path, self.version, self.answer = name, path, "1.0", answer

    def run(self, case: Case) -> Tensor | Refusal:
        return self.answer(case)


def broken(case: Case) -> Tensor:
    raise ValueError("no | such\nkernel")


ANSWERS = {
    "pass": lambda case: case.expected.to(torch.int32),
    "fail": lambda case: case.expected + 1,
    "nan": lambda case: case.expected * torch.nan,
    "shape": lambda case: case.expected.flatten()[1:],
    "refused": lambda case: Refusal("no such operator"),
    "error": broken,
}


@pytest.fixture
def cases() -> tuple[Case, ...]:
    return tuple(case for case in load_cases() if case.operator in ("max_pool2d", "cat"))


def tools(*names: str) -> list[Adapter]:
    return [Tool(name, "", ANSWERS[name]) for name in names]


@pytest.mark.parametrize(
    ("name", "verdict", "detail"),
    [
        ("pass", "pass", ""),
        ("fail", "fail", "4 of 4 differ: [0] 256, not 255"),
        ("nan", "fail", "4 of 4 differ: [0] nan, not 255"),
        ("shape", "fail", "shape [3], expected [1, 1, 2, 2]"),
        ("refused", "refused", "no such operator"),
        ("error", "error", "ValueError: no | such kernel"),
    ],
)
def test_verdicts(cases, name, verdict, detail):
    outcome = next(iter(run_cases(cases, tools(name))))
    assert (outcome.verdict, outcome.detail[: len(detail)]) == (verdict, detail)


def test_the_worst_path_of_a_tool_counts(cases):
    adapters: Any = [Tool("both", "good", ANSWERS["pass"]), Tool("both", "bad", ANSWERS["fail"])]
    results = run_cases(cases, adapters)
    assert results.versions == (("both", "1.0 (good, bad)"),)
    assert not results.passed("both")
    assert {outcome.path for outcome in results.failures()} == {"bad"}


def test_the_summary_counts_what_passes_and_what_is_refused(cases):
    results = run_cases(cases, tools("pass", "refused", "error"))
    assert results.counts()[-1] == ["all", 3, "3", "0 (3 refused)", "0"]
    assert results.passed("pass")
    lines = str(results).splitlines()
    assert lines[0].split() == ["operator", "cases", "pass", "refused", "error"]
    assert sum(line.startswith("error: ") for line in lines) == 3


def test_markdown_has_a_mark_for_each_case(cases):
    results = run_cases(cases, tools("pass", "fail", "refused", "error"))
    text = results.markdown()
    rows = [line for line in text.splitlines() if line.startswith("| max_pool2d | padding")]
    assert [row.split(" | ")[-4:] for row in rows] == [["✓", "✗", "–", "! |"]] * 2
    assert "`ValueError: no / such kernel`" in text
    assert run_cases(cases, tools("pass")).markdown().endswith("Nothing.\n")
