"""The Python blocks of each document run in order and print what is quoted; the files that they link to exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
WITH_CODE = [name for name, text in TEXTS.items() if "```python\n" in text]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func itself calls it
@pytest.mark.parametrize("name", WITH_CODE)
def test_blocks_run_in_order_and_print_what_is_quoted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for index, (code, quoted) in enumerate(blocks(TEXTS[name])):
        exec(compile(code, f"{name}, block {index}", "exec"), names)
        printed = without_numbers(capsys.readouterr().out)
        lines = [line for line in without_numbers(quoted) if line != "…"]
        places = [printed.index(line) for line in lines]  # raises, with the line, where one is not printed
        assert places == sorted(places)
        if lines and "…" not in quoted:
            assert printed == lines


def blocks(text: str) -> list[tuple[str, str]]:
    """Each Python block, and the text that is quoted right below it."""
    return re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)


def without_numbers(text: str) -> list[str]:
    """Lines with every fraction as ``#``, since it may be another one on another machine, and single spaces."""
    return [" ".join(re.sub(r"-?\b\d+\.\d+(e-?\d+)?\b", "#", line).split()) for line in text.splitlines()]


def test_a_fraction_may_differ_and_nothing_else() -> None:
    assert without_numbers("conv.1.0   88.9 %  -2.5 a_1 model.py:64") == ["conv.# # % # a_1 model.py:64"]
    assert blocks("```python\nx\n```\n\n```text\ny\n```\n\n```python\nz\n```\n") == [("x\n", "y\n"), ("z\n", "")]


@pytest.mark.parametrize("name", TEXTS)
def test_linked_files_exist(name: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", TEXTS[name])
    assert [link for link in links if not (DOCS / link).exists()] == []
