"""What is put into pages when the site is built: documents of the folder above, and the reference of public names.

A page with the line ``<!-- file: ../README.md -->`` is that document. ``<!-- names of: plan observers -->`` becomes the
documentation of the public names that are defined in these packages. The drawings of passes are those of
``pass_diagrams.py``.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from types import ModuleType

import pass_diagrams

import fxquant

MARK = re.compile(r"<!-- names of: ([\w* ]+) -->")
FILE = re.compile(r"<!-- file: (\S+) -->")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
ALSO_SHOWN = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Documents of the folder above, and the pages that show them."""
DOCS = Path(__file__).resolve().parent
WITHOUT_HOME = {"DEFAULT_PATTERNS": "patterns"}
"""Values that do not say where they are from."""


def home(name: str) -> str:
    """Return the package below ``fxquant`` that a public name is from; empty for a package itself."""
    value = getattr(fxquant, name)
    if isinstance(value, ModuleType):
        return ""
    module = getattr(value, "__module__", None) or type(value).__module__
    return WITHOUT_HOME.get(name) or module.split(".")[1]


def names_of(packages: list[str]) -> list[str]:
    """Return the public names from these packages, in the order of packages, functions before classes.

    Args:
        packages: Names of packages; ``"*"`` for all that no page asks for by name.
    """
    asked = {
        each for page in (DOCS / "api").glob("*.md") for mark in MARK.findall(page.read_text()) for each in mark.split()
    }
    others = sorted({home(name) for name in fxquant.__all__} - asked - {""}) if "*" in packages else []
    packages = [each for each in packages if each != "*"] + others
    found = [name for name in fxquant.__all__ if home(name) in packages]
    kinds = (inspect.isfunction, inspect.isclass)

    def place(name: str) -> tuple[int, int, str]:
        value = getattr(fxquant, name)
        kind = next((number for number, holds in enumerate(kinds) if holds(value)), len(kinds))
        return packages.index(home(name)), kind, name

    return sorted(found, key=place)


def directive(name: str) -> str:
    """Return the line of reStructuredText that documents a name."""
    value = getattr(fxquant, name)
    if inspect.isfunction(value):
        return f".. autofunction:: {name}\n"
    if not inspect.isclass(value):
        return f".. py:data:: {name}\n   :type: {type(value).__name__}\n"
    if value.__name__ != name:
        return f".. py:data:: {name}\n\n   A former name of ``{value.__name__}``.\n"
    return f".. autoclass:: {name}\n"


def linked(text: str, page: Path, source: Path) -> str:
    """Make links of a document fit the page that shows it; of files that the site has not, the text stays alone.

    Args:
        page: The page.
        source: The document, which is the page itself or lies elsewhere.
    """

    def link(found: re.Match[str]) -> str:
        words, (target, mark, heading) = found[1], found[2].partition("#")
        file = (source.parent / target).resolve()
        if not target or ":" in target or (file.is_relative_to(DOCS) and source == page):
            return found[0]
        if file.is_relative_to(DOCS):
            return f"[{words}]({os.path.relpath(file, page.parent)}{mark}{heading})"
        shown = {DOCS.parent / name: place for name, place in ALSO_SHOWN.items()}.get(file)
        return f"[{words}]({os.path.relpath(DOCS / shown, page.parent)}{mark}{heading})" if shown else words

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def filled(text: str, page: Path) -> str:
    """Put what a page asks for in place of its marks, and make its links fit."""

    def names(mark: re.Match[str]) -> str:
        lines = "\n".join(directive(name) for name in names_of(mark[1].split()))
        return f"```{{eval-rst}}\n.. currentmodule:: fxquant\n\n{lines}```"

    def file(mark: re.Match[str]) -> str:
        source = (page.parent / mark[1]).resolve()
        return linked(source.read_text(encoding="utf-8"), page, source)

    text = MARK.sub(names, FILE.sub(file, linked(text, page, page)))
    return text.replace(pass_diagrams.MARK, pass_diagrams.drawings()) if pass_diagrams.MARK in text else text
