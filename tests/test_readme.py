"""The README's examples run and print what the README says; the files and names that it mentions exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fxquant as fxq

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
    *lines, int8 = capsys.readouterr().out.splitlines()
    *quoted, quoted_int8 = block("text", "Ten lines").splitlines()
    assert lines == quoted
    counts = [re.fullmatch(r"int8: (\d+) of 20 right", line) for line in (int8, quoted_int8)]
    right, quoted_right = (int(found[1]) for found in counts if found)
    assert abs(right - quoted_right) <= 1  # where two classes are close, the last bit of a range decides


def test_the_example_is_short() -> None:
    code = [
        line for line in block("python", "Ten lines").splitlines() if line and not line.startswith(("import", "from"))
    ]
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


def test_figures_are_those_of_the_documents() -> None:
    better = README.partition("## What is better here\n")[2].partition("\n## ")[0]
    (head, row) = re.findall(r"^  \| ([^-].*) \|$", better, re.MULTILINE)
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert f"| fxquant, ms | {head} |" in performance
    assert f"| geometric mean | | {row} |" in performance
    training = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert all(words in training for words in ("about 125 of 156 answers", "34 when", "131 in float"))


def test_versions_are_those_of_the_last_run_of_the_matrix() -> None:
    section = README.partition("## Versions\n")[2].partition("\n## ")[0]
    found = json.loads((ROOT / "docs" / "matrix.json").read_text(encoding="utf-8"))
    rows = [(row["python"], row["torch"], row["state"]) for row in found["rows"]]
    assert found["date"] in section
    ran = {(python, torch, state) for python, torch, state in rows if state != "not run"}
    assert set(re.findall(r"^\| (\S+) \| (\S+) \| (passed|failed)", section, re.MULTILINE)) == ran
    missing = {python for python, _, state in rows if state == "not run"} - {python for python, _, _ in ran}
    assert missing <= set(re.findall(r"\d\.\d+(?:\.\d+)?", section.rpartition("Not run")[2]))
