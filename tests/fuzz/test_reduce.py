"""A finding is shortened to what it needs, and what is printed runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import checks, finding
from tests.fuzz.finding import Finding
from tests.fuzz.generate import generate
from tests.fuzz.reduce import plainer, reduced
from tests.fuzz.source import Input, Line, Recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_hardswish(monkeypatch):
    """A check that fails for every model that has a hardswish."""

    def check(case):
        case.run(case.model, case.example)
        return "it has a hardswish" if "F.hardswish" in case.code else ""

    monkeypatch.setitem(checks.CHECKS, "hardswish", check)


def test_a_model_is_shortened_to_the_line_that_counts(no_hardswish):
    seed = next(seed for seed in range(500) if "F.hardswish" in str(generate(seed)) and len(generate(seed).lines) > 5)
    found = reduced(finding.find(generate(seed), seed, ("hardswish",)))
    assert len(found.recipe.lines) == 1
    assert found.recipe.members == ()
    assert all(size <= 2 for each in found.recipe.inputs for size in each.shape)


def test_calls_become_plainer():
    assert set(plainer("v = f(g(x), a=1)")) == {"v = f(g(x))", "v = g(x)", "v = f(x, a=1)"}
    assert list(plainer("self.m = seeded(3, nn.Linear(4, 4))")) == []


def test_what_is_printed_runs(tmp_path):
    recipe = Recipe(
        (Input("x", (2, 4)),),
        (Line("self.m1 = seeded(3, nn.Linear(4, 4))"),),
        (Line("v1 = self.m1(x)"),),
        Line("return v1"),
    )
    script = tmp_path / "finding.py"
    script.write_text(str(Finding("prepared = float", "it differs\nby much", recipe, 7)), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert run.stdout == "nothing was found\n"
