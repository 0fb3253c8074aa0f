"""The page in a real browser: it draws, searches, sorts, folds, and survives what users call their modules."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq

Opened = Callable[..., str]
MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, calibrated: fxq.Quantizer) -> Path:
    folder = tmp_path_factory.mktemp("small")
    return fxq.report(calibrated, folder / "report.html", [calibrated.example_args[0]])


def words(document: str, place: str = "") -> str:
    """What can be read in a document, or in the element of an id."""
    part = document.partition(f'id="{place}"')[2] if place else document.partition("<body")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", part)).split())


def test_the_overview(small: Path, opened: Opened) -> None:
    shown = words(opened(small), "view")
    assert "state calibrated" in shown
    assert "parity 0 breaches in 4 units" in shown
    assert "float log_softmax" in shown
    assert "float, as wished kept Linear the configuration leaves it in float" in shown
    assert "The ten lowest" in shown
    assert "<canvas" in opened(small)


def test_the_graph_has_a_box_per_unit_and_a_link_per_value(small: Path, opened: Opened) -> None:
    document = opened(small, "view=graph")
    assert set(re.findall(r'data-node="([^"]+)"', document)) == {
        *("x", "relu", "relu_1", "mean", "head", "log_softmax", "kept", "output")
    }
    assert document.count('class="edge"') == 7
    assert "conv, conv_bn_act, int8" in document  # what a screen reader says
    every = opened(small, "view=graph&boxes=nodes")
    assert set(re.findall(r'data-node="([^"]+)"', every)) > {"conv", "bn", "add"}


@pytest.mark.slow
def test_bookkeeping_is_hidden_until_it_is_asked_for(halves: fxq.Quantizer, tmp_path: Path, opened: Opened) -> None:
    page = fxq.report(halves, tmp_path / "report.html")
    shown = {"x", "linear", "chunk", "getitem_2", "cat", "reshape", "_tensor_constant0", "add", "output"}
    usual = opened(page, "view=graph")
    assert set(re.findall(r'data-node="([^"]+)"', usual)) == shown
    links = set(re.findall(r'data-from="([^"]+)" data-to="([^"]+)"', usual))
    assert links == {
        *(("x", "linear"), ("linear", "chunk"), ("chunk", "getitem_2"), ("getitem_2", "cat"), ("chunk", "cat")),
        *(("cat", "reshape"), ("reshape", "add"), ("_tensor_constant0", "add"), ("add", "output")),
    }
    assert "show bookkeeping (9)" in words(usual, "view")
    tick = "document.querySelector('.toolbar input[type=checkbox]').click();"
    every = opened(page, "view=graph", tick)
    assert set(re.findall(r'data-node="([^"]+)"', every)) > shown | {"size", "getitem", "sub"}
    found = "location.hash = 'view=graph'; document.getElementById('query').value = 'sub'; "
    enter = "new KeyboardEvent('keydown', { key: 'Enter' })"
    search = f"{found} query.dispatchEvent(new Event('input')); query.dispatchEvent({enter});"
    assert re.search(r'class="box selected"[^>]*data-node="sub"', opened(page, "view=graph", search))


@pytest.mark.slow
def test_without_bookkeeping_there_is_no_switch(small: Path, opened: Opened) -> None:
    assert "show bookkeeping" not in words(opened(small, "view=graph"))


@pytest.mark.slow
def test_the_graph_is_coloured_by_what_was_measured(small: Path, opened: Opened) -> None:
    script = """
        const by = [...document.querySelectorAll("select")].at(-1);
        by.value = [...by.options].find((each) => each.text.includes("isolated")).value;
        by.dispatchEvent(new Event("change"));
    """
    document = opened(small, "view=graph", script)
    colours = set(re.findall(r"--c:\s*(#\w+)", document))
    assert len(colours) > 1
    assert "a fifth of them in each colour" in document


def test_a_click_shows_a_node(small: Path, opened: Opened) -> None:
    script = """document.querySelector('[data-node="relu_1"]').dispatchEvent(new MouseEvent("click"));"""
    document = opened(small, "view=graph", script)
    details = words(document, "details")
    for part in ("side int8 relu_1", "unit conv_add_act", "from conftest.py:", "measured by HistogramObserver"):
        assert part in details
    assert "reads relu" in details
    assert "between the dashed lines is the quantization range" in details
    assert document.partition('id="details"')[2].count("<canvas") >= 4  # histograms, and scales per channel
    assert re.search(r'class="box selected"[^>]*data-node="relu_1"', document)


@pytest.mark.slow
def test_a_node_that_is_gone_is_said_to_be(small: Path, opened: Opened) -> None:
    assert "No graph of this report has a node of that name." in words(opened(small, "node=nowhere"), "details")


@pytest.mark.slow
def test_passes_stand_side_by_side(small: Path, opened: Opened) -> None:
    script = """[...document.querySelectorAll(".step")].find((e) => e.innerText.includes("fold_conv_bn")).click();"""
    document = opened(small, "view=passes", script)
    assert "bn(layer(x)) becomes one layer" in words(document)
    assert re.search(r'side gone"[^>]*><span class="sign">−</span><code>conv = Conv2d\(x\)', document)
    assert re.search(
        r'side new"[^>]*><span class="sign">\+</span><code>bn = <mark>Conv2d\[conv\]\(x\)</mark>', document
    )
    assert "lines are the same" in words(document)
    unfolded = opened(small, "view=passes", script + "setTimeout(() => document.querySelector('.fold').click(), 50)")
    assert len(re.findall('class="side ', unfolded)) > len(re.findall('class="side ', document))


@pytest.mark.slow
def test_tables_sort_and_filter(small: Path, opened: Opened) -> None:
    sort = """[...document.querySelectorAll("th button")].find((e) => e.innerText === "MACs").click();"""
    document = opened(small, "view=tables", sort + sort)
    body = document.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r'title="(\w+)"', body)[0] == "relu_1"
    assert 'aria-sort="descending"' in document
    filtered = """
        const filter = document.querySelector(".tables input");
        filter.value = "float why configuration".replace("why ", "");
        filter.dispatchEvent(new Event("input"));
    """
    body = opened(small, "view=tables", filtered).partition("<tbody>")[2].partition("</tbody>")[0]
    assert body.count("<tr") == 1


@pytest.mark.slow
def test_the_search_finds_by_any_word(small: Path, opened: Opened) -> None:
    script = """
        const query = document.getElementById("query");
        query.value = "LOG softmax";
        query.dispatchEvent(new Event("input"));
    """
    found = words(opened(small, "", script), "found")
    assert "2 nodes float log_softmax" in found  # one calls it, one reads it
    assert "log_softmax" in found
    enter = """query.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));"""
    assert "log_softmax" in words(opened(small, "", script + enter), "details")


@pytest.mark.slow
def test_light_and_dark_and_a_phone(small: Path, opened: Opened) -> None:
    assert 'data-theme="light"' in opened(small)
    assert 'data-theme="dark"' in opened(small, "", "document.getElementById('theme').click();")
    measure = "document.body.setAttribute('data-wide', document.documentElement.scrollWidth > innerWidth);"
    for view in ("overview", "graph", "passes", "tables"):
        assert 'data-wide="false"' in opened(small, f"view={view}&node=relu_1", measure, width=500)


@pytest.fixture(scope="module")
def with_search(
    tmp_path_factory: pytest.TempPathFactory, calibrated: fxq.Quantizer, searched: fxq.PrecisionSearch
) -> Path:
    return fxq.report(calibrated, tmp_path_factory.mktemp("search") / "report.html", results=[searched])


@pytest.mark.slow
def test_there_is_a_view_of_searches_only_where_there_is_one(small: Path, with_search: Path, opened: Opened) -> None:
    assert "Precision" not in words(opened(small), "views").partition("Search")[0]
    assert "Precision" in words(opened(with_search), "views")


@pytest.mark.slow
def test_the_front_is_drawn_and_each_layer_has_its_bits(
    with_search: Path, searched: fxq.PrecisionSearch, opened: Opened
) -> None:
    document = opened(with_search, "view=precision")
    points = {point.choices for point in searched.pareto} | {searched.point.choices}
    assert len(re.findall(r'role="radio"', document)) == len(points)
    assert document.count('aria-checked="true"') == document.count('tabindex="0"') == 1
    shown = words(document, "view")
    assert "found: " in shown
    assert f"measured {searched.measured:.1f}"[:-2] in shown
    body = document.partition("<tbody>")[2].partition("</tbody>")[0]
    assert [re.findall(r"<td>(W\dA\d)</td>", row)[0] for row in body.split("</tr>")[:-1]] == [
        row.choice for row in searched
    ]
    assert body.count('class="bitbar fate-int8"') == sum(
        bits is not None for row in searched for bits in (row.weight, row.activation)
    )


@pytest.mark.slow
def test_arrow_keys_go_along_the_front(with_search: Path, searched: fxq.PrecisionSearch, opened: Opened) -> None:
    press = """
        const press = (key) =>
          document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        document.querySelector('[role="radio"][tabindex="0"]').focus();
        press("Home");
        setTimeout(() => press("ArrowRight"), 200);
        setTimeout(() => document.body.setAttribute("data-held", document.activeElement.dataset.point), 400);
    """
    document = opened(with_search, "view=precision", press)
    assert 'data-held="1"' in document  # the focus went along
    body = document.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r"<td>(W\dA\d)</td>", body) == list(searched.pareto[1].choices)
    assert "point 1 of the front" in words(document, "point")


@pytest.mark.slow
def test_a_front_can_be_drawn_against_any_cost(with_search: Path, opened: Opened) -> None:
    document = opened(with_search, "view=precision&cost=size")
    assert 'aria-label="predicted dB against bytes of weights"' in document
    document = opened(with_search, "view=precision&search=7&point=99&cost=no", width=500)
    assert document.count('aria-checked="true"') == 1  # what an address says that there is not is passed over


def test_a_page_is_printed_whole(with_search: Path, tmp_path: Path, opened: Opened) -> None:
    """Views scroll on the screen; on paper, what would be below takes further pages."""
    opened(with_search, "view=tables", paper=tmp_path / "short.pdf")
    rows = """
        const body = document.querySelector("tbody");
        for (let i = 0; i < 200; i += 1) body.append(body.rows[0].cloneNode(true));
    """
    opened(with_search, "view=precision", rows, paper=tmp_path / "long.pdf")
    pages = {
        name: len(re.findall(rb"/Type\s*/Page\b", (tmp_path / name).read_bytes())) for name in ("short.pdf", "long.pdf")
    }
    assert pages["long.pdf"] > pages["short.pdf"] >= 1


class Odd(nn.Module):
    """Names that would end a script, or begin a comment."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("</script><script>title=1</script>", nn.Linear(4, 4))
        self.add_module("<!--", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


@pytest.mark.slow
def test_names_of_modules_are_text(tmp_path: Path, opened: Opened) -> None:
    x = torch.randn(2, 4)
    prepared = fxq.calibrate(fxq.prepare(Odd().eval(), x), [x], progress=False)
    document = opened(fxq.report(prepared, tmp_path / "odd.html", [x]), "view=tables")
    assert "<title>Odd · fxquant</title>" in document
    assert "&lt;/script&gt;&lt;script&gt;title=1&lt;/script&gt;" in document
    assert "&lt;!--" in document


@pytest.mark.slow
def test_resnet50_fits(tmp_path: Path, opened: Opened) -> None:
    models = pytest.importorskip("torchvision.models")
    x = torch.randn(1, 3, 64, 64)
    prepared = fxq.calibrate(fxq.prepare(models.resnet50(weights=None).eval(), x), [x], progress=False)
    page = fxq.report(prepared, tmp_path / "resnet50.html", [x])
    assert page.stat().st_size < MOST_BYTES
    assert opened(page, "view=graph").count('class="box') == 59
