"""``python -m fxquant conformance``, and that the page it wrote is still true of fxquant."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.__main__ import main
from fxquant.cli.conformance import BEGIN
from fxquant.conformance.case import load_cases

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ADAPTER = """
import torch

class Zeros:
    name, version, path = "zeros", "1", ""

    def run(self, case):
        return torch.zeros_like(case.expected)
"""


def test_it_prints_who_passes_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--operator", "max_pool2d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operator", "cases", "fxquant"]
    assert lines[-2].split() == ["all", "2", "2"]
    assert lines[-1].startswith("fxquant 0.")


def test_other_tools_are_run_by_their_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tool.py").write_text(ADAPTER)
    page = tmp_path / "page.md"
    page.write_text(f"# Kept\n\n{BEGIN}\n\nold\n")
    arguments = ["--adapter", f"{tmp_path / 'tool.py'}:Zeros", "--operator", "cat", "--markdown", str(page)]
    assert main(["conformance", *arguments]) == 0
    assert "zeros: cat, other qparams for the result: " in capsys.readouterr().out
    text = page.read_text("utf-8")
    assert text.startswith(f"# Kept\n\n{BEGIN}\n\n* fxquant: 0.")
    assert "old" not in text
    assert "* zeros: 1" in text
    assert main(["conformance", *arguments[:4], "--tool", "zeros"]) == 0
    assert "fxquant" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--tool", "torchao"], ["--operator", "conv4d"], ["--adapter", "no.py:Tool"]])
def test_what_is_not_there_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == 1
    assert "InputError: " in capsys.readouterr().err


def test_the_page_says_that_fxquant_passes_all_and_lists_every_case() -> None:
    """That it does is tested in ``conformance/test_own.py``."""
    table = PAGE.read_text("utf-8").partition("## Case by case")[2].partition("## What is different")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    head, *cells = rows
    assert [(row[0], row[1]) for row in cells] == [(case.operator, case.name) for case in load_cases()]
    assert {row[head.index("fxquant")] for row in cells} == {"✓"}
    assert {"torch.ao x86", "torch.ao fbgemm", "ONNX Runtime", "OpenVINO"} <= set(head)


def test_what_is_no_adapter_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tool.py").write_text("class Tool:\n    name = 'tool'\n")
    spec = f"{tmp_path / 'tool.py'}:Tool"
    assert main(["conformance", "--adapter", spec]) == 1
    assert capsys.readouterr().err.strip() == (
        f"InputError: this makes no adapter\n  at:       {spec}\n"
        "  got:      Tool without version, path, run\n"
        "  expected: a class as fxquant/conformance/adapter.py says"
    )


def test_missing_folders_are_made(tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.md"
    assert main(["conformance", "--operator", "max_pool2d", "--markdown", str(page)]) == 0
    assert page.read_text("utf-8").startswith(BEGIN)
