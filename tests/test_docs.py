"""The Python blocks of each document run in order and print what is quoted; the files that they link to exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fxquant.backends.base import BACKENDS

DOCS = Path(__file__).parent.parent / "docs"
TEXTS = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
GUIDES = ("configuration.md", "passes.md", "reports.md", "training.md")
"""Whose blocks tests/test_guides.py runs, each by itself, and looks at what they make."""
WITH_CODE = [name for name, text in TEXTS.items() if "```python\n" in text and name not in GUIDES]
SLOW = {"debugging.md"}
"""A whole network on photographs; tests/test_guides.py compares and measures one of torchvision in the same way."""


@pytest.fixture
def back_ends() -> Iterator[None]:
    """What a page registers is gone after it."""
    before = set(BACKENDS)
    yield
    for name in set(BACKENDS) - before:
        BACKENDS.remove(name)


@pytest.mark.usefixtures("back_ends", "translations_read_once")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func itself calls it
@pytest.mark.filterwarnings("ignore:ONNX Runtime.s kernels differ")  # on processors without VNNI
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in WITH_CODE])
def test_blocks_run_in_order_and_print_what_is_quoted(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
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
    prose = re.sub(r"```.*?```", "", TEXTS[name], flags=re.DOTALL)
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", prose)
    assert [link for link in links if not (DOCS / name).parent.joinpath(link).exists()] == []


ROOT = DOCS.parent
SOURCES = [path.read_text("utf-8") for path in sorted((ROOT / "fxquant").rglob("*.py"))]
FUNCTIONS = {name for text in SOURCES for name in re.findall(r"^ *def (\w+)", text, re.MULTILINE)}


def items(text: str) -> list[str]:
    """The numbered items of a document: each begins a line, and the lines that follow it are indented."""
    return [part for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if re.match(r"\d+\. ", part)]


def misplaced(item: str) -> list[str]:
    """Functions of ours that an item names in backticks, and that stand in none of the files that it names."""
    quoted = re.findall(r"`([^`]+)`", item)
    paths = [ROOT / folder / each for each in quoted for folder in ("", "fxquant/kernels")]
    code = "\n".join(path.read_text("utf-8") for path in paths if path.is_file())
    code = re.sub(r"^from [\w.]+ import", "", code, flags=re.MULTILINE)  # a module may have the name of a function
    called = [re.fullmatch(r"(?:[A-Z]\w+\.)?(\w+)(?:\(.*\))?", each) for each in quoted]
    names = {found[1] for found in called if found}
    return sorted(name for name in names & FUNCTIONS if not re.search(rf"\b{name}\b", code))


def test_each_item_of_the_architecture_names_what_stands_in_its_file() -> None:
    found = items(TEXTS["architecture.md"])
    assert [item.split(".")[0] for item in found] == [str(number) for number in range(1, 13)]
    assert {item.split(".")[0]: misplaced(item) for item in found if misplaced(item)} == {}


def test_a_name_in_another_file_is_misplaced() -> None:
    assert misplaced("1. [`fxquant/quantizer/prepare.py`](x): `captured`, `byte_weight(...)`, `gm`") == ["byte_weight"]
    assert misplaced("1. `fxquant/quantizer/prepare.py`: `run_passes`, `run_prepare_passes`") == ["run_passes"]
    assert misplaced("1. `fxquant/backends/cpu.py`: `QuantizedConv.from_unit`, `torch.fx`") == []
