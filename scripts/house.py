"""Counts what can be counted of how the package reads. ``--tree PATH`` does it for another checkout."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
FRAGMENT = re.compile(r"^(What|Of|Whether|How|Which|Where|As|That|Those)\b")
"""A docstring that begins so is no sentence, in most cases."""
LONG = 20
"""Statements of a function, from which on its steps have comments."""
WINDOW = 6
"""Lines that are equal, after names were replaced, to count as a copy."""

RUN = """
import sys, threading
import torch
from torch import nn
seen, files = set(), set()
def note(frame, event, arg):
    if event == "call" and "/fxquant/" in frame.f_code.co_filename:
        if not frame.f_code.co_name.startswith("<"):  # a comprehension, or the body of a module
            seen.add(frame.f_code)
        files.add(frame.f_code.co_filename)
import fxquant as fxq
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
x = torch.randn(2, 3, 8, 8)
sys.setprofile(note)
prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
int8 = fxq.convert(prepared)
for _ in range(3):
    int8(x)
sys.setprofile(None)
print(len(files), len(seen))
"""


def trees(package: Path) -> dict[Path, ast.Module]:
    """Each Python file of the package, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))}


def module_name(package: Path, path: Path) -> str:
    parts = ("fxquant", *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers(package: Path, parsed: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Module -> the modules that import it."""
    names = {module_name(package, path) for path in parsed}
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[inner if inner in names else node.module].add(module_name(package, path))
    return found


def docstrings(parsed: dict[Path, ast.Module]) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for tree in parsed.values():
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text:
                yield text


def long_functions_without_comments(parsed: dict[Path, ast.Module]) -> int:
    """Functions of more than ``LONG`` statements in which no comment says what a step is."""
    count = 0
    for path, tree in parsed.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = lines[node.lineno - 1 : node.end_lineno]
                statements = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
                has_docstring = ast.get_docstring(node) is not None
                count += statements - has_docstring > LONG and not any("# " in line for line in body)
    return count


def share_of_signatures(package: Path, parsed: dict[Path, ast.Module]) -> float:
    """Percent of the lines of ``kernels`` that are heads of functions."""
    heads = lines = 0
    for path, tree in parsed.items():
        if path.is_relative_to(package / "kernels"):
            lines += len(path.read_text(encoding="utf-8").splitlines())
            heads += sum(
                node.body[0].lineno - node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            )
    return 100 * heads / lines


def statements_apart(tree: ast.Module) -> set[int]:
    """Numbers of the lines of imports, docstrings and ``__all__``, which are alike in all files."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if text or names or isinstance(node, (ast.Import, ast.ImportFrom)):
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return numbers


def declarations(tree: ast.Module) -> set[int]:
    """Numbers of the lines of heads of functions, of fields and tables, and of long lists and calls."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            numbers.update(range(begin, node.body[0].lineno))
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for each in node.body:
                if isinstance(each, (ast.Assign, ast.AnnAssign)):
                    numbers.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
        if isinstance(node, (ast.List, ast.Dict, ast.Tuple, ast.Set, ast.Call)):
            end = node.end_lineno or node.lineno
            numbers.update(range(node.lineno + 1, end + 1) if end - node.lineno >= WINDOW else ())
    return numbers


def copies(parsed: dict[Path, ast.Module], *, of: str = "everything") -> int:
    """Pairs of neighbouring windows of lines that are equal once names are replaced, each stretch counted once.

    ``of="code"``: without imports, docstrings and ``__all__``; ``of="statements"``: without declarations, too.
    """
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, tree in parsed.items():
        apart = set() if of == "everything" else statements_apart(tree)
        apart |= declarations(tree) if of == "statements" else set()
        texts = path.read_text(encoding="utf-8").splitlines()
        lines = [text.strip() for number, text in enumerate(texts, start=1) if number not in apart]
        lines = [re.sub(r"[A-Za-z_]\w*", "n", line) for line in lines]
        lines = [line for line in lines if line and not line.startswith(("#", '"""'))]
        for start in range(len(lines) - WINDOW + 1):
            window = tuple(lines[start : start + WINDOW])
            if "n n n n" not in window[0]:  # prose
                places[window].append((path, start))
    pairs = {(*first, *second) for found in places.values() for first, second in pairwise(found)}
    return sum((a, i - 1, b, j - 1) not in pairs for a, i, b, j in pairs)


def executed(tree: Path) -> tuple[str, str]:
    """Files and functions of the package that one conv-bn-relu runs, from prepare to the third int8 call."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tree, env={"PYTHONPATH": str(tree)}, capture_output=True, text=True
    )
    files, functions = done.stdout.split()[-2:] if done.returncode == 0 else ("?", "?")
    return files, functions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout (this one)")
    tree = parser.parse_args().tree.resolve()
    package = tree / "fxquant"
    parsed = trees(package)
    imported_by = importers(package, parsed)
    small = [
        path
        for path in parsed
        if len(imported_by[module_name(package, path)]) == 1 and len(path.read_text(encoding="utf-8").splitlines()) < 80
    ]
    texts = list(docstrings(parsed))
    functions = Counter(type(node).__name__ for each in parsed.values() for node in ast.walk(each))["FunctionDef"]
    files, called = executed(tree)
    rows = (
        ("Python files run for one conv-bn-relu, prepare to third call", files, 60),
        ("functions executed", called, 450),
        ("modules loose in fxquant/", sum(path.parent == package and path.stem[0] != "_" for path in parsed), 5),
        ("modules with one importer and under 80 lines", len(small), "a third of the start"),
        ("share of kernels/*.py that is heads of functions, %", f"{share_of_signatures(package, parsed):.1f}", 8),
        (
            "docstrings that begin with What, Of, Whether, How, Which, Where, As, That, Those, %",
            f"{100 * sum(bool(FRAGMENT.match(text)) for text in texts) / len(texts):.1f}",
            3,
        ),
        (f"functions of more than {LONG} statements without a comment", long_functions_without_comments(parsed), 0),
        (f"places with {WINDOW} equal lines, names replaced", copies(parsed), "a third of the start"),
        ("of these, of neither imports nor docstrings", copies(parsed, of="code"), "–"),
        ("of these, of statements: not heads, fields, tables and lists", copies(parsed, of="statements"), "–"),
        ("lines of fxquant/**/*.py", sum(len(path.read_text("utf-8").splitlines()) for path in parsed), "4,000 fewer"),
        ("files, functions", f"{len(parsed)}, {functions}", "–"),
    )
    print(tabulate(rows, headers=("", "now", "at most"), tablefmt="github"))


if __name__ == "__main__":
    main()
