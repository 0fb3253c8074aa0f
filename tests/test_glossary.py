"""Names in the code use the words of docs/glossary.md, and the glossary names only what exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fxquant

PACKAGE = Path(fxquant.__file__).parent
GLOSSARY = PACKAGE.parent / "docs" / "glossary.md"

REFUSED = {
    "bake": "materialize parametrizations",
    "baking": "materialize parametrizations",
    "bundle": "group bundle",
    "derive": "pack",
    "derived": "packed",
    "grid": "qparams",
    "grids": "qparams",
    "kept": "what it is kept for: saved, quantized, left whole",
    "lane": "resumable run",
    "lanes": "resumable runs",
    "lonely": "isolated",
    "looking": "forbid compute",
    "made": "what it is: nodes, paths, factory tensors",
    "moves": "data movement",
    "phases": "sub-convolutions",
    "picks": "maxima",
    "rejection": "refusal",
    "rejections": "refusals",
    "settle": "fold constants",
    "settled": "constant, or stable",
    "settling": "constant folding",
    "shell": "model without ranges",
    "torn": "has external item",
}
"""A word that only this project would use -> the field's word."""

REFUSED_IN_CPP = {
    **{word: other for word, other in REFUSED.items() if word not in ("bundle", "lane", "lanes", "moves")},
    "border": "pointer patch",
    "moved": "shifted, or rebinned",
    "piece": "K block",
    "pieces": "K blocks",
    "quad": "K group",
    "quads": "K groups",
    "started": "init accumulators",
    "walk": "for each tile",
}
"""The same for C++, where a lane is one of a vector register and ``std::move`` moves."""

PUBLIC = {
    "choose_grid": "method of fake-quantize modules, which users override",
    "grids": "argument of adaround",
    "rejections": "former name of the refusals of a plan",
    "settled": "column of the calibration report",
    "settled_after": "field of a row of the calibration report",
    "grid_sample": "torch's",
}
"""Name -> why it stays: users type it, or torch does."""


REFUSED_IN_TEXT = {
    r"(?:first|second) cache": "L1 cache, L2 cache",
    r"grids?(?![:=])": "qparams, scheme or quantization range",
    r"real (?:numbers?|ranges?|units?|values?)": "float values",
    r"stored integers?": "quantized values",
    r"rejections?|rejected": "refusal, refused",
    r"shells?": "model without ranges",
}
"""The same for docstrings, comments, messages and documents. Before a colon or ``=``, ``grids`` is adaround's."""

QUOTED = ("must be a string or a real number", "Rejection", "rejections")
"""A message of Python, a public name, and a key of files."""


def words_of(name: str) -> list[str]:
    """Lower case words of a name in snake_case or CamelCase."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each class, function, argument, and annotated field."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


def refused(names: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(line, name) for line, name in names if name not in PUBLIC and {*words_of(name)} & {*REFUSED}]


def test_names_use_the_words_of_the_field():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        found += [f"{where}: the module" for _ in refused(iter([(0, path.stem)]))]
        found += [f"{where}:{line}: {name}" for line, name in refused(names_in(ast.parse(path.read_text("utf-8"))))]
    assert found == []


TEXT = re.compile("|".join(rf"\b(?:{word})\b" for word in REFUSED_IN_TEXT), re.IGNORECASE)


def sentences_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string of a source, docstrings among them, and of each comment if one may be refused."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    if not any("#" in line and TEXT.search(line) for line in text.splitlines()):
        return  # a comment is a part of its line, and tokens take as long as all else
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def refused_in_text(sentences: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{line}: {found[0]}"
        for line, text in sentences
        for found in [TEXT.search(text)]
        if found and not any(quoted in text for quoted in QUOTED)
    ]


def test_docstrings_comments_and_messages_use_the_words_of_the_field():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        found += [f"{where}:{line}" for line in refused_in_text(sentences_in(path.read_text("utf-8")))]
    assert found == []


def test_documents_use_the_words_of_the_field():
    root = PACKAGE.parent
    paths = [
        root / "README.md",
        root / "CONTRIBUTING.md",
        root / "CHANGELOG.md",
        *sorted((root / "docs").rglob("*.md")),
    ]
    found = []
    for path in paths:
        lines = enumerate(path.read_text("utf-8").splitlines(), start=1)
        found += [f"{path.name}:{line}" for line in refused_in_text(lines) if path.name != "reading.md"]
    for path in sorted((root / "examples").rglob("*.py")):
        found += [f"{path.name}:{line}" for line in refused_in_text(sentences_in(path.read_text("utf-8")))]
    assert found == []


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ('"""Values on a grid."""', ["1: grid"]),
        ("x = 1\n# Real numbers come out.", ["2: Real numbers"]),
        ('raise ValueError(f"{x} lies on no grid")', ["1: grid"]),
        ('def f():\n    """Stored integers."""', ["2: Stored integers"]),
        ('"""Args:\n    grids: those of adaround."""', []),
        ("axis.grid()", []),
        ('"must be a string or a real number, not it"', []),
    ],
)
def test_what_is_refused_in_text(code, lines):
    assert refused_in_text(sentences_in(code)) == lines


CPP_NAME = re.compile(
    r"^\s*(?:struct|class|enum(?: class)?|using)\s+(?:alignas\([^)]*\)\s+)?(\w+)\s*[{:=\n]"  # a type
    r"|^[ \t]*(?:[\w:<>,*&\[\]]+[ \t]+)+[*&]*(\w+)\((?![^\n]*\)[ \t]*;)[^\n]*[{,]$",  # a function, or its first line
    re.MULTILINE,
)


def cpp_names_in(text: str) -> list[str]:
    return [name for found in CPP_NAME.findall(text) for name in found if name]


def refused_in_cpp(text: str) -> list[str]:
    return [name for name in cpp_names_in(text) if {*words_of(name)} & {*REFUSED_IN_CPP}]


def test_cpp_names_use_the_words_of_the_field():
    """Of types and functions; a word in the middle of a function is seen by readers alone."""
    csrc = PACKAGE / "kernels" / "csrc"
    texts = {path: path.read_text("utf-8") for path in sorted(csrc.rglob("*")) if path.suffix in (".h", ".cpp", ".cu")}
    assert {"ConvTask", "run_tasks", "PointerPatch"} <= {n for text in texts.values() for n in cpp_names_in(text)}
    assert {path.name: refused_in_cpp(text) for path, text in texts.items() if refused_in_cpp(text)} == {}


def cpp_comments_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment."""
    for line, code in enumerate(text.splitlines(), start=1):
        if "//" in code:
            yield line, code.partition("//")[2]


def test_cpp_comments_use_the_words_of_the_field():
    csrc = PACKAGE / "kernels" / "csrc"
    found = {
        path.name: refused_in_text(cpp_comments_in(path.read_text("utf-8")))
        for path in sorted(csrc.rglob("*"))
        if path.suffix in (".h", ".cpp", ".cu")
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert refused_in_text(cpp_comments_in("int x;\nint y;  // on the grid, in the first cache")) == ["2: grid"]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("struct Walk {\n", ["Walk"]),
        ("template <typename T>\nvoid walk_rows(const T* x, int64_t count) {\n", ["walk_rows"]),
        ("  FXQ_INLINE int64_t quads() const {\n", ["quads"]),
        ("struct Border {\n  int64_t at;\n};\nstruct Sidewalk {\n", ["Border"]),
        ("inline void check_grid(const char* op,\n", ["check_grid"]),
        ("  walk(x, y);\n", []),
    ],
)
def test_what_is_refused_in_cpp(code, names):
    assert refused_in_cpp(code) == names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def settle_sizes(): ...", ["settle_sizes"]),
        ("class MadeTensors: ...", ["MadeTensors"]),
        ("def f(x, *, kept): ...", ["kept"]),
        ("class A:\n    y_grid: int = 0", ["y_grid"]),
        ("def adaround(grids): ...", []),
        ("def f(homemade, gridlock): ...", []),
    ],
)
def test_what_is_refused(code, names):
    assert [name for _, name in refused(names_in(ast.parse(code)))] == names


def test_public_exceptions_are_still_needed():
    texts = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py")]
    left = [name for name in PUBLIC if not any(f".{name}" in text for text in texts)]
    holding = [text for text in texts if any(name in text for name in left)]
    names = {name for text in holding for _, name in names_in(ast.parse(text))}
    assert [name for name in left if name not in names] == []


def entries() -> list[str]:
    return re.findall(r"^\| (?!word\b|---)([^|]+?) \|", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)


def test_entries_are_sorted_within_their_tables():
    for table in GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]:
        found = [entry.lower() for entry in re.findall(r"^\| (?!word\b|---)([^|]+?) \|", table, re.MULTILINE)]
        assert found == sorted(found)
    assert len(entries()) == len(set(entries())) >= 40


def test_paths_exist():
    text = GLOSSARY.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:fxquant|tests)/[\w/.]+)`", text)
    assert paths
    assert [path for path in paths if not (PACKAGE.parent / path).exists()] == []
