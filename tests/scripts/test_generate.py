"""The data files are what the generator gives, and it needs neither torch nor fxquant's operators."""

from __future__ import annotations

import ast
from pathlib import Path

from fxquant.conformance.case import CASES
from scripts.conformance_cases import conversions, exact, generate, operators


def test_the_files_are_what_is_generated(tmp_path):
    exact.write(generate.rows(), tmp_path)
    written = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text("utf-8") for path in CASES.iterdir()}


def test_what_is_expected_is_computed_without_torch():
    for module in (exact, conversions, operators, generate):
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }
        assert imported.isdisjoint({"torch", "fxquant"})


def test_names_are_given_once():
    for rows in generate.rows().values():
        names = [(row["operator"], row["name"]) for row in rows]
        assert len(names) == len(set(names))
        assert all(row["why"] and row["source"] for row in rows)
