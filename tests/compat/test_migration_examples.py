"""Programs for torch.ao, before and after: what changes are imports, and both give about the same."""

from __future__ import annotations

import contextlib
import functools
import io
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sampling import one_of

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "migration"
PROGRAMS = sorted(path.name.removesuffix("_after.py") for path in FOLDER.glob("*_after.py"))
MORE_THAN_IMPORTS = {"custom_module": 4}
"""Program -> lines that change beside imports: its last class is made of a module of ``torch.ao.nn.quantized``."""


@functools.cache
def outputs(name: str, when: str) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Run a program; return what its float and its quantized model give, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        model, quantized, inputs = runpy.run_path(str(FOLDER / f"{name}_{when}.py"))["main"]()
    with torch.no_grad():
        return model(*inputs), quantized(*inputs), printed.getvalue()


def noise(name: str, when: str) -> float:
    expected, got, _ = outputs(name, when)
    return float((got - expected).norm() / expected.norm())


def test_there_are_ten_programs():
    assert len(PROGRAMS) == 10
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(
        f"{name}_{when}.py" for name in PROGRAMS for when in ("before", "after")
    )


def test_at_least_seven_change_only_imports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    count: Any = runpy.run_path(str(ROOT / "benchmarks" / "migration.py"))["lines_changed"]
    others = {}
    for name in PROGRAMS:
        before, after = ((FOLDER / f"{name}_{when}.py").read_text("utf-8").splitlines() for when in ("before", "after"))
        imports, others[name] = count(before, after)
        assert imports
    assert {name: number for name, number in others.items() if number} == MORE_THAN_IMPORTS
    assert count(["import a", "x"], ["import b", "y", "z"]) == (1, 2)


@pytest.mark.parametrize("name", one_of(3, PROGRAMS))
def test_what_comes_after_is_close_to_float(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, got, _ = outputs(name, "after")
    assert (got - expected).abs().max() < 0.06 * expected.abs().max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_of(3, PROGRAMS))
def test_what_came_before_is_no_closer(name):
    pytest.importorskip("torch.ao.quantization")
    assert noise(name, "after") < 1.2 * noise(name, "before") + 1e-3


@pytest.mark.filterwarnings("ignore")
def test_the_numeric_suite_finds_the_same_noise():
    pytest.importorskip("torch.ao.ns._numeric_suite_fx")

    def rows(when: str) -> dict[tuple[str, str], float]:
        lines = [line.split() for line in outputs("numeric_suite", when)[2].splitlines()]
        return {(kind, path): float(decibels) for kind, _, path, decibels, _ in lines}

    before, after = rows("before"), rows("after")
    assert before.keys() <= after.keys()
    assert all(after[key] > before[key] - 1 for key in before)
    assert after["weight", "0.0"] == pytest.approx(before["weight", "0.0"], abs=0.1)
