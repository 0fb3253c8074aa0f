"""``make docs``: every page is in the navigation, and every public name on a page of the reference."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import fxquant

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in DOCS.rglob("*.md")}


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    spec = spec_from_file_location("site_pages", DOCS / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    index = PAGES["index"].read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)```", index, re.DOTALL)
    listed = [name for tree in trees for name in tree.split()]
    assert sorted(listed) == sorted({*PAGES} - {"index"})


def test_every_public_name_is_on_one_page(site_pages: ModuleType) -> None:
    shown = []
    for path in (DOCS / "api").glob("*.md"):
        for packages in site_pages.MARK.findall(path.read_text(encoding="utf-8")):
            shown += site_pages.names_of(packages.split())
    packages = {"fake_quantize", "kernels", "nn"}
    assert sorted(shown) == sorted({*fxquant.__all__} - packages)


def test_what_no_page_asks_for_is_on_the_page_of_the_rest(
    site_pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_pages, "home", lambda name: "new" if name == "save" else "plan")
    assert site_pages.names_of(["*"]) == ["save"]
    assert site_pages.names_of(["artifact"]) == []


def test_a_page_is_filled(site_pages: ModuleType) -> None:
    page = DOCS / "api" / "page.md"
    text = site_pages.filled("# Title\n\n<!-- names of: patterns -->\n", page)
    assert text.startswith("# Title\n\n```{eval-rst}\n.. currentmodule:: fxquant\n\n.. autofunction:: op\n")
    assert ".. autoclass:: Pattern\n" in text
    assert ".. py:data:: DEFAULT_PATTERNS\n   :type: tuple\n" in text
    assert "A former name of ``Refusal``." in site_pages.filled("<!-- names of: plan -->", page)


@pytest.mark.parametrize(
    ("source", "link", "shown"),
    [
        ("README.md", "[a](docs/deploy.md#b)", "[a](deploy.md#b)"),
        ("README.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("README.md", "[a](examples/lstm.py), [b](https://c.d)", "a, [b](https://c.d)"),
        ("README.md", "```\n[a](b)\n```", "```\n[a](b)\n```"),
        ("docs/index.md", "[a](deploy.md), [b](#c), [d](../fxquant/api.py)", "[a](deploy.md), [b](#c), d"),
        ("docs/index.md", "[a](../README.md#ten-lines)", "[a](index.md#ten-lines)"),
    ],
)
def test_links_fit_the_page(site_pages: ModuleType, source: str, link: str, shown: str) -> None:
    assert site_pages.linked(link, DOCS / "index.md", DOCS.parent / source) == shown
