"""``scripts/house.py`` counts what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "house.py"
BODY = "\n".join(f"    total_{line} = first[{line}] + other({line})" for line in range(7))


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "fxquant"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "a.py").write_text(f'"""What is here."""\n\n\ndef f(first, other):\n{BODY}\n')
    again = BODY.replace("total_", "sum_")
    (folder / "b.py").write_text(
        f'"""It counts."""\n\nfrom fxquant.kernels.a import f\n\n\ndef g(first, other):\n{again}\n'
    )
    return folder


def test_who_imports_a_module(house, package):
    assert house.importers(package, house.trees(package)) == {"fxquant.kernels.a": {"fxquant.b"}}


def test_heads_of_functions(house, package):
    assert house.share_of_signatures(package, house.trees(package)) == pytest.approx(100 * 1 / 11)


def test_copies_are_found_though_names_differ(house, package):
    assert house.copies(house.trees(package)) == 1


def test_lists_of_imports_are_copies_of_text_and_not_of_code(house, package):
    for name in ("c.py", "d.py"):
        (package / name).write_text(
            '"""It imports."""\n\n' + "".join(f"from fxquant.{x} import {x}\n" for x in "klmnop")
        )
    parsed = house.trees(package)
    assert (house.copies(parsed), house.copies(parsed, of="code")) == (2, 1)


def test_lists_and_fields_are_copies_of_code_and_not_of_statements(house, package):
    fields = "".join(f"    {x}: int\n" for x in "klmnop")
    call = "    return f(\n" + "".join(f"        {x}={x},\n" for x in "klmnopqr") + "    )\n"
    for name in ("c.py", "d.py"):
        (package / name).write_text(f"class C:\n{fields}\n\ndef f(**options):\n{call}")
    parsed = house.trees(package)
    assert house.copies(parsed, of="code") > 1
    assert house.copies(parsed, of="statements") == 1


def test_long_functions_have_comments(house, package):
    body = "\n".join(f"    x += {line}" for line in range(21))
    (package / "c.py").write_text(f'def f(x):\n    """Add."""\n{body}\n')
    (package / "d.py").write_text(f"def f(x):\n    # Add.\n{body}\n")
    assert house.long_functions_without_comments(house.trees(package)) == 1


def test_fragments(house, package):
    assert [bool(house.FRAGMENT.match(text)) for text in house.docstrings(house.trees(package))] == [False, True]
