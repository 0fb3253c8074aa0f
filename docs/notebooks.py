"""Tutorials as Jupyter notebooks: the blocks of a page that begin with ``python`` are its cells.

A page with the line ``<!-- notebook -->`` has there a link to itself as a notebook, which lies beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext

MARK = "<!-- notebook -->"
LINK = '<a href="{name}.ipynb" download>This page as a Jupyter notebook</a>'
TO_A_PAGE = re.compile(r"\[([^\]]+)\]\((?!\w+://)[^)\s]+\)")
"""A link to another page, which a notebook does not have beside it."""


def with_link(text: str, page: Path) -> str:
    """Put the link to the notebook in place of the mark."""
    return text.replace(MARK, LINK.format(name=page.stem))


def write_notebook(page: Path, target: Path) -> None:
    """Write a page as a notebook; links to other pages become their words."""
    notebook = jupytext.reads(page.read_text(encoding="utf-8").replace(MARK + "\n\n", ""), fmt="md")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = TO_A_PAGE.sub(r"\1", cell.source)
    target.parent.mkdir(parents=True, exist_ok=True)
    jupytext.write(notebook, target)


def write_notebooks(docs: Path, site: Path) -> None:
    """Write the notebook of each page that has the mark beside it."""
    for page in sorted(docs.rglob("*.md")):
        if MARK in page.read_text(encoding="utf-8"):
            write_notebook(page, site / page.relative_to(docs).with_suffix(".ipynb"))
