"""What a fresh clone offers: the targets, and the script that CI runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on this machine")


def make(*arguments: str) -> str:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert re.findall(r"^  make ([\w-]+) +\S", make("help"), re.MULTILINE) == phony[1].split()
    assert make() == make("help")


def test_the_framework_is_pinned() -> None:
    plan = make("--dry-run", "--always-make", "test")
    assert "torch==2.14.1 torchvision==0.29.1" in plan
    assert plan.index("torch==2.14.1") < plan.index("--editable '.[dev,examples]'") < plan.index("-m pytest")
    commands = [line for line in plan.splitlines() if not line.startswith("make[")]  # a make inside a make says so
    assert "-m pytest" in commands[-1]  # its closing line is the last that CI prints


def test_compiled_tests_are_kept() -> None:
    plan = make("--dry-run", "test")
    assert re.search(r"^PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 \S+ -m pytest ", plan, re.MULTILINE)


def test_cuda_has_an_installation_of_its_own() -> None:
    with_cuda = make("--dry-run", "--always-make", "lint", "FXQUANT_CUDA=1")
    assert ".fxquant-cuda" in with_cuda
    assert ".fxquant-cpu" not in with_cuda


def test_ci_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("\nmake docs\nmake smoke\nmake test")
