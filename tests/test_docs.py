"""Every Python block of the documents runs; the files that they link to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
BLOCKS = [
    pytest.param(name, code, id=f"{name}, {index}")
    for name, text in TEXTS.items()
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func itself calls it
@pytest.mark.parametrize(("name", "code"), BLOCKS)
def test_blocks_run(name: str, code: str) -> None:
    exec(compile(code, name, "exec"), {})


@pytest.mark.parametrize("name", TEXTS)
def test_linked_files_exist(name: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", TEXTS[name])
    assert [link for link in links if not (DOCS / link).exists()] == []
