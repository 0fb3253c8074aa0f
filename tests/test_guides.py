"""The guides that were part of the README run, each block by itself, and do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fxquant.__main__ import main
from fxquant.commandline import COMMANDS
from fxquant.passes.pipelines import PREPARE
from fxquant.settings import NOT_READ_HERE, Settings

DOCS = Path(__file__).parent.parent / "docs"


def block(language: str, page: str, heading: str = "") -> str:
    """The first code block in a language on a page, or below a heading of it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0] if heading else text
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, f"no {language} block on {page} below {heading!r}"
    return found[1]


def test_the_configuration_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block("python", "configuration.md"), "configuration.md", "exec"), names)
    conv, weight_only = (names["loaded"].get_submodule(name) for name in ("0", "3"))
    assert (conv.weight.dtype, conv.weight.min().item(), conv.weight.max().item()) == (torch.int8, -8, 7)
    assert weight_only.weight.dtype == torch.int8
    assert weight_only.weight_scale.shape == (64, 288 // 32)
    assert names["loaded"].get_submodule("4").weight.dtype == torch.float32


def test_the_passes_print_what_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "torchvision:resnet18"]) == 0
    printed = without_times(capsys.readouterr().out).splitlines()
    quoted = [line for line in without_times(block("text", "passes.md")).splitlines() if line != "…"]
    first = [line for line in printed if line.startswith("[1/")]
    assert [line.split()[1] for line in first] == [PREPARE[0].name, quoted[0].split()[1]]
    places = [printed.index(line) for line in quoted]  # raises, with the line, where one is not printed
    assert places == sorted(places)


def without_times(text: str) -> str:
    """Lines of passes without how long they took."""
    return re.sub(r"  [\d.]+ ms$", "", text, flags=re.MULTILINE)


def test_the_training_runs() -> None:
    names: dict[str, object] = {}
    exec(compile(block("python", "training.md", "Training"), "training.md", "exec"), names)
    assert names["int8"].get_submodule("0").weight.dtype == torch.int8  # type: ignore[attr-defined]


def test_rounding_is_learned() -> None:
    names: dict[str, Any] = {}
    exec(compile(block("python", "training.md", "Learned rounding"), "training.md", "exec"), names)
    assert len(names["learned"].reconstruction.rows) == 2
    assert names["int8"].get_submodule("0").weight.abs().max() <= 8


@pytest.mark.slow
def test_the_reports_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(block("python", "reports.md", "Which layer hurts"), "reports.md", "exec"), names)
    printed = capsys.readouterr().out
    for words in ("what the model returns: ", "each row: that unit alone.", "units are slower in int8"):
        assert words in printed
    spared = {row.name.partition(" ")[0] for row in names["costs"].worst(2)}
    assert spared <= {str(rule.key) for rule in names["mapping"].rules()} | {""}


def test_the_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", "reports.md", "The report"), "reports.md", "exec"), {})
    assert (tmp_path / "out" / "report.html").stat().st_size > 0


def test_every_variable_and_command_is_documented() -> None:
    read = set(re.findall(r"FXQUANT_[A-Z_]+", (DOCS.parent / "fxquant/settings.py").read_text(encoding="utf-8")))
    read -= {"FXQUANT_", *NOT_READ_HERE}
    assert {f"FXQUANT_{word}" for word in ("DEBUG", "VERIFY", "CACHE")} <= read
    assert read <= set(re.findall(r"FXQUANT_[A-Z_]+", (DOCS / "passes.md").read_text(encoding="utf-8")))
    assert len(read) == len(Settings.__dataclass_fields__)
    page = (DOCS / "command_line.md").read_text(encoding="utf-8")
    assert [command.name for command in COMMANDS if f"python -m fxquant {command.name}" not in page] == []
