"""Programs for torch.ao, before and after: what changes are imports, and both give about the same."""

from __future__ import annotations

import difflib
import runpy
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples" / "migration"
PROGRAMS = sorted(path.name.removesuffix("_after.py") for path in FOLDER.glob("*_after.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_imports_change(name):
    before, after = ((FOLDER / f"{name}_{when}.py").read_text("utf-8").splitlines() for when in ("before", "after"))
    changed = [line for line in difflib.ndiff(before, after) if line[:1] in "+-"]
    assert changed
    assert all(line[2:].startswith("from ") or not line[2:] for line in changed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_comes_after_is_close_to_float(name):
    expected, got = runpy.run_path(str(FOLDER / f"{name}_after.py"))["main"]()
    assert (got - expected).abs().max() < 0.06 * expected.abs().max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_came_before_is_no_closer(name):
    pytest.importorskip("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, got = runpy.run_path(str(FOLDER / f"{name}_before.py"))["main"]()
    ours, ours_got = runpy.run_path(str(FOLDER / f"{name}_after.py"))["main"]()
    before, after = (got - expected).norm() / expected.norm(), (ours_got - ours).norm() / ours.norm()
    assert after < 2 * before + 1e-3
