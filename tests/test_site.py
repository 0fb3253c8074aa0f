"""``make docs``: every page is in the navigation, and every public name on a page of the reference."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import fxquant

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in DOCS.rglob("*.md")}


@pytest.fixture(scope="module")
def site_pages() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)  # as conf.py does
        yield load("site_pages")


def load(name: str) -> ModuleType:
    """Load a module of the folder of documents."""
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
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


def test_drawings_of_passes(site_pages: ModuleType) -> None:
    """Each pass that changes the graph of the block, before and after, in nodes that do not cover each other."""
    diagrams = site_pages.pass_diagrams
    snapshots = diagrams.snapshots()
    names = [each.name for each in snapshots]
    assert names == ["normalize", "drop_idle", "fold_conv_bn", "lower_units", "insert_training_fake_quant"]
    for each in snapshots:
        for text in (each.before, each.after):
            nodes = diagrams.read(text)
            assert len(nodes) == len(text.splitlines())
            at = diagrams.places(nodes)
            assert len({(place.x, place.y) for place in at.values()}) == len(nodes)
            assert all(at[name].layer < at[node.name].layer for node in nodes for name in node.inputs)
    folded = snapshots[2]
    svg = diagrams.drawing(folded)
    nodes = len(folded.before.splitlines()), len(folded.after.splitlines())
    assert f"{nodes[0]} nodes become {nodes[1]}" in svg
    added, removed = folded.counts
    assert (
        (svg.count('class="node'), svg.count(' gone"'), svg.count(' new"'))
        == (sum(nodes), removed, added)
        == (20, 4, 2)
    )
    assert svg.count('class="edge"') == sum(
        len(node.inputs) for text in (folded.before, folded.after) for node in diagrams.read(text)
    )
    lowered = diagrams.read(snapshots[3].after)
    kinds = {node.name: node.kind for node in lowered}
    assert (kinds["x"], kinds["x_quantize"], kinds["relu_1"]) == ("float", "integer", "integer")
    assert next(node.inputs for node in lowered if node.name == "relu_1") == ("relu", "x_quantize")


def test_a_line_that_is_no_node_is_named(site_pages: ModuleType) -> None:
    with pytest.raises(ValueError, match="this line is no node: 'a b'"):
        site_pages.pass_diagrams.read("a b")


def test_the_page_of_passes_has_the_drawings(site_pages: ModuleType) -> None:
    page = DOCS / "passes.md"
    text = site_pages.filled(page.read_text(encoding="utf-8"), page)
    assert "### lower_units\n\n" in text
    assert text.count('<svg class="pass"') == 5
    assert site_pages.pass_diagrams.MARK not in text


def listed_as_tutorials() -> list[str]:
    index = PAGES["index"].read_text(encoding="utf-8")
    tree = re.search(r"```\{toctree\}\n:caption: Tutorials\n:hidden:\n\n(.*?)```", index, re.DOTALL)
    assert tree is not None
    return tree[1].split()


@pytest.mark.parametrize("name", listed_as_tutorials())
def test_a_tutorial_is_a_notebook_of_the_blocks_that_are_tested(name: str, tmp_path: Path) -> None:
    notebooks, page = load("notebooks"), PAGES[name]
    text = page.read_text(encoding="utf-8")
    assert f'<a href="{page.stem}.ipynb" download>' in notebooks.with_link(text, page)
    notebooks.write_notebook(page, tmp_path / "page.ipynb")
    written = json.loads((tmp_path / "page.ipynb").read_text(encoding="utf-8"))
    cells = [("".join(cell["source"]), cell["cell_type"]) for cell in written["cells"]]
    blocks = re.findall(r"^```python\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    assert [source for source, kind in cells if kind == "code"] == blocks  # those that test_docs.py runs
    words = "".join(source for source, kind in cells if kind == "markdown")
    assert words.startswith("# ")
    assert not re.search(r"\]\((?!https?://)", words)  # a notebook has no page beside it
    assert written["metadata"]["kernelspec"]["name"] == "python3"


def test_the_site_has_the_notebooks_of_all_tutorials_and_no_others(tmp_path: Path) -> None:
    load("notebooks").write_notebooks(DOCS, tmp_path)
    found = [path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.ipynb")]
    assert sorted(found) == sorted(listed_as_tutorials())
