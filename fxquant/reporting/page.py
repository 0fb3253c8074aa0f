"""The HTML file: template, style, scripts and data in one, so that it opens without a network.

Layout is d3-dag's (MIT, 143 KB). Of what was tried it alone takes 2,000 nodes in a row (0.5 s) and a U-Net of 1,000
(1 s): dagre (49 KB) recurses once per rank and overflows the stack there, and spreads long chains sideways; elkjs is
1.6 MB; graphviz as WebAssembly about as much. Histograms and curves are uPlot's (MIT, 51 KB), which draws on canvas.
Versions and licences: ``assets/vendor``.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fxquant.errors import InputError, writing

VENDOR_SCRIPTS = ("vendor/d3-dag.iife.min.js", "vendor/uPlot.iife.min.js")
SCRIPTS = (
    "base.js",
    "overview.js",
    "layout.js",
    "moving.js",
    "drawing.js",
    "passes.js",
    "download.js",
    "tables.js",
    "beside.js",
    "precision.js",
    "details.js",
    "search.js",
    "main.js",
)
"""In the order in which they run: all but the last only define."""
HINT = "report(model, path, data) takes the path of a file in a folder of yours"
STYLES = ("vendor/uPlot.min.css", "report.css")


def page(facts: Mapping[str, Any]) -> str:
    """Return the whole page, as text.

    Args:
        facts: What ``reporting.facts.facts`` gathered. Its strings are shown as text, whatever they hold.
    """
    own = "\n".join(map(asset, SCRIPTS))
    parts = {
        "title": html.escape(f"{facts['title']} · fxquant"),
        "style": "\n".join(map(asset, STYLES)),
        "vendor": "\n".join(f'<script id="{name}">{asset(name)}</script>' for name in VENDOR_SCRIPTS),
        "script": f'(() => {{\n"use strict";\n{own}\n}})();',
        "data": embedded(facts),
    }
    pieces = asset("report.html").split("{{")
    filled = [parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:])]
    return pieces[0] + "".join(filled)


def embedded(facts: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: nothing in it ends the element, or begins a comment."""
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def asset(name: str) -> str:
    """Return the text of a file in ``fxquant/reporting/assets``."""
    return resources.files("fxquant.reporting").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def write(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page; missing folders are made.

    Raises:
        InputError: it cannot be written there.
    """
    text = page(facts)
    with writing("the report", path, hint=HINT):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def file_to_write(path: object) -> Path:
    """Return the path of a report, looked at before there is one.

    Raises:
        InputError: it is none, or that of a folder.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError("the report needs the path of a file", got=repr(path), expected="a str or a pathlib.Path")
    file = Path(path)
    if file.is_dir():
        inside = file / "report.html"
        raise InputError(
            "the report cannot be written", at=str(file), got="a folder", expected="a file", hint=f"give {inside}"
        )
    return file
