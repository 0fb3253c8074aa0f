"""The README's examples run and print what the README says; the files and names that it mentions exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fxq
from fxquant.__main__ import main
from fxquant.commandline import COMMANDS
from fxquant.passes.pipelines import PREPARE
from fxquant.settings import NOT_READ_HERE, Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def block(language: str, heading: str) -> str:
    """The first code block in a language below a heading."""
    section = README.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, f"no {language} block below {heading!r}"
    return found[1]


def test_the_example_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python", "Ten lines"), "README.md", "exec"), {})
    assert capsys.readouterr().out == block("text", "Ten lines")


def test_the_configuration_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block("python", "Configuration"), "README.md", "exec"), names)
    conv, weight_only = (names["loaded"].get_submodule(name) for name in ("0", "3"))
    assert (conv.weight.dtype, conv.weight.min().item(), conv.weight.max().item()) == (torch.int8, -8, 7)
    assert weight_only.weight.dtype == torch.int8
    assert weight_only.weight_scale.shape == (64, 288 // 32)
    assert names["loaded"].get_submodule("4").weight.dtype == torch.float32


def test_the_passes_print_what_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "torchvision:resnet18"]) == 0
    printed = without_times(capsys.readouterr().out).splitlines()
    quoted = [line for line in without_times(block("text", "How to read the passes")).splitlines() if line != "…"]
    first = [line for line in printed if line.startswith("[1/")]
    assert [line.split()[1] for line in first] == [PREPARE[0].name, quoted[0].split()[1]]
    places = [printed.index(line) for line in quoted]  # raises, with the line, where one is not printed
    assert places == sorted(places)


def without_times(text: str) -> str:
    """Lines of passes without how long they took."""
    return re.sub(r"  [\d.]+ ms$", "", text, flags=re.MULTILINE)


def test_the_training_runs() -> None:
    names: dict[str, object] = {}
    exec(compile(block("python", "Training"), "README.md", "exec"), names)
    assert names["int8"].get_submodule("0").weight.dtype == torch.int8  # type: ignore[attr-defined]


def test_the_reports_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(block("python", "Which layer hurts"), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    for words in ("what the model returns: ", "each row: that unit alone.", "units are slower in int8"):
        assert words in printed
    spared = {row.name.partition(" ")[0] for row in names["costs"].worst(2)}
    assert spared <= {str(rule.key) for rule in names["mapping"].rules()} | {""}


def test_the_example_is_short() -> None:
    code = [line for line in block("python", "Ten lines").splitlines() if line and not line.startswith("import")]
    assert len(code) <= 10


@pytest.mark.parametrize("name", DOCUMENTS)
def test_linked_files_exist(name: str) -> None:
    prose = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", prose)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_files_and_functions_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    missing = [attribute for attribute in re.findall(r"\bfxq\.(\w+)", text) if not hasattr(fxq, attribute)]
    paths = re.findall(r"`((?:fxquant|tests|benchmarks|examples)/[\w/.]+)`", text)
    assert missing + [path for path in paths if not (ROOT / path).exists()] == []


def test_every_variable_and_command_is_documented() -> None:
    read = set(re.findall(r"FXQUANT_[A-Z_]+", (ROOT / "fxquant/settings.py").read_text(encoding="utf-8")))
    read -= {"FXQUANT_", *NOT_READ_HERE}
    assert {f"FXQUANT_{word}" for word in ("DEBUG", "VERIFY", "CACHE")} <= read
    assert read <= set(re.findall(r"FXQUANT_[A-Z_]+", README))
    assert len(read) == len(Settings.__dataclass_fields__)
    for command in COMMANDS:
        assert f"python -m fxquant {command.name}" in README or f"make {command.name}" in README


def test_the_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", "The report"), "README.md", "exec"), {})
    assert (tmp_path / "out" / "report.html").stat().st_size > 0
