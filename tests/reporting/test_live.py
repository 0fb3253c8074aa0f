"""The page in real time: it is moved about in, by mouse and keys; tables are taken along; a report stands beside it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fxq
from tests.reporting.live import Live
from tests.sampling import one_of

Browser = Callable[..., AbstractContextManager[Live]]
BOXES = "document.querySelectorAll('.box').length"
PAUSE = "new Promise((done) => setTimeout(done, 150))"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, calibrated: fxq.Quantizer) -> Path:
    folder = tmp_path_factory.mktemp("live")
    about = {"weights": "random, seed 0", "data": "two batches of integers"}
    return fxq.report(calibrated, folder / "report.html", about=about)


@pytest.mark.parametrize(("modules", "layers"), [(9, 100), pytest.param(20, 100, marks=pytest.mark.slow)])
def test_many_nodes_are_shown_by_module_and_placed_in_a_worker(
    modules: int, layers: int, tmp_path: Path, live: Browser
) -> None:
    """More than 400 units are shown by module; more than 150 boxes are placed in a worker."""
    parts = [
        nn.Sequential(*(nn.Linear(4, 4) if place % 2 else nn.ReLU() for place in range(layers))) for _ in range(modules)
    ]
    model = nn.Sequential(*parts).eval()
    page = fxq.report(fxq.prepare(model, torch.randn(2, 4)), tmp_path / "long.html")
    with live(page, "view=graph") as browser:
        browser.wait("document.documentElement?.dataset.drawn")
        assert browser.run(BOXES) == modules + 2
        assert browser.run("started") == 0
        browser.run("document.querySelector('[data-node=\"module 3\"]').dispatchEvent(new MouseEvent('click'))")
        browser.wait(f"{BOXES} > {modules + 2}")
        assert browser.run(BOXES) == modules + 1 + layers // 2  # a linear layer and the ReLU before it are one unit
        browser.run("location.hash = 'view=graph&boxes=nodes&node=_7_37'")
        browser.wait(f"{BOXES} > {modules * layers // 2}")
        assert browser.run(BOXES) == modules * layers + 2
        assert browser.run("started") == 1
        assert browser.run("document.querySelectorAll('.edge').length") == modules * layers + 1
        browser.wait("document.querySelector('.box.selected')?.dataset.node === '_7_37'")


def test_wheel_and_pointer(small: Path, live: Browser) -> None:
    with live(small, "view=graph") as browser:
        browser.wait("document.documentElement?.dataset.drawn")
        browser.run("canvas = document.getElementById('canvas'); picture = document.getElementById('picture')")
        width = browser.run("picture.getBoundingClientRect().width")
        wheel = """
            canvas.dispatchEvent(
              new WheelEvent("wheel", { deltaY: -600, clientX: 640, clientY: 300, cancelable: true }))
        """
        assert browser.run(wheel) is False  # the page does not scroll
        assert browser.run("picture.getBoundingClientRect().width") > 1.5 * width
        browser.run("canvas.scrollTop = 100")
        drag = """
            for (const [name, y] of [["pointerdown", 300], ["pointermove", 260]])
              canvas.dispatchEvent(new PointerEvent(name, { clientX: 640, clientY: y, button: 0 }));
            canvas.scrollTop
        """
        assert browser.run(drag) == 140
        click = "document.querySelector('.box').dispatchEvent(new MouseEvent('click')); location.hash"
        assert "node" not in browser.run(click)  # what is dragged is not clicked
        browser.run("canvas.dispatchEvent(new PointerEvent('pointerup'))")
        browser.run(PAUSE)
        assert "node" in browser.run(click)


@pytest.mark.slow
def test_keys_go_from_box_to_box(small: Path, live: Browser) -> None:
    with live(small, "view=graph") as browser:
        browser.wait("document.documentElement?.dataset.drawn")
        assert browser.run("document.querySelectorAll('.box[tabindex=\"0\"]').length") == 1
        browser.run(
            """
            document.querySelector('.box[tabindex="0"]').focus();
            press = (key) =>
              document.activeElement.dispatchEvent(
                new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
            press("Home"); 0
            """
        )
        focus = "document.activeElement.dataset.node"
        assert browser.run(focus) == "x"
        visited = [browser.run(f"press('{key}'); {focus}") for key in ("ArrowDown", "ArrowDown", "ArrowUp", "End")]
        assert visited == ["relu", "relu_1", "relu", "output"]
        assert browser.run("document.querySelectorAll('.box[tabindex=\"0\"]').length") == 1
        browser.run("press('Home'); press('ArrowDown'); press(' '); 0")
        browser.wait("!document.getElementById('details').hidden")
        assert browser.run("document.querySelector('#details code').textContent") == "relu"


def test_tables_are_taken_along(small: Path, live: Browser) -> None:
    catch = (
        "const made = URL.createObjectURL; URL.createObjectURL = (blob) => { window.taken = blob; return made(blob); };"
    )
    with live(small, "view=tables&table=1", catch) as browser:
        browser.wait("document.documentElement?.dataset.ready")
        click = "[...document.querySelectorAll('.tab')].find((e) => e.textContent === '{}').click(); taken.text()"
        rows = list(csv.DictReader(io.StringIO(browser.run(click.format("CSV")))))
        assert {row["node"] for row in rows} >= {"x", "relu", "relu_1"}
        assert all(float(row["smallest"]) <= float(row["largest"]) for row in rows)
        found = json.loads(browser.run(click.format("JSON")))
        assert found["title"] == "Ranges of values"
        assert found["about"]["weights"] == "random, seed 0"
        assert [row["node"] for row in found["rows"]] == [row["node"] for row in rows]


@pytest.mark.slow
def test_two_reports_side_by_side(small: Path, tmp_path: Path, calibrated: fxq.Quantizer, live: Browser) -> None:
    def beside(text: str) -> str:
        return f"""
            files = new DataTransfer();
            files.items.add(new File([{json.dumps(text)}], "other.html"));
            input = document.querySelector("input[type=file]");
            input.files = files.files;
            input.dispatchEvent(new Event("change"));
            0
        """

    wider = fxq.prepare(calibrated.graph_module, calibrated.example_args[0])
    batch = [4 * calibrated.example_args[0]]
    other = fxq.report(fxq.calibrate(wider, batch, progress=False), tmp_path / "other.html")
    with live(small, "view=beside&table=1") as browser:
        browser.wait("document.documentElement?.dataset.ready")
        browser.run(beside(other.read_text(encoding="utf-8")))
        text = browser.wait("document.querySelector('.beside .rows') && document.getElementById('view').innerText")
        assert "this report" in text
        assert "calibrated on 1 batch" in text
        assert "rows differ" in text
        assert browser.run("document.querySelectorAll('.rows td.worse, .rows td.better').length") > 0
        browser.run(beside("<p>another page</p>"))
        browser.wait("document.getElementById('view').innerText.includes('no report of fxquant')")


@pytest.mark.parametrize("theme", one_of(2, ["light", "dark"]))
def test_axe_finds_nothing(small: Path, live: Browser, theme: str) -> None:
    """Rules of accessibility, in each view, with a node's details, and with what a search has found."""
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    asked = "axe.run().then((found) => found.violations.map((each) => [each.id, each.nodes[0].html]))"
    with live(small) as browser:
        browser.wait("document.documentElement?.dataset.ready")
        browser.run(f"{axe}; 0")
        if theme == "dark":
            browser.run("document.getElementById('theme').click(); 0")
        for address in ("", "view=graph&node=relu_1", "view=passes", "view=tables&table=2", "view=beside"):
            browser.run(f"location.hash = '{address}'; {PAUSE}")
            assert (address, browser.run(asked)) == (address, [])
        browser.run("query.value = 'relu'; query.dispatchEvent(new Event('input')); 0")
        assert browser.run(asked) == []


@pytest.mark.slow
def test_what_it_is_of_stands_below_the_title(small: Path, live: Browser) -> None:
    with live(small) as browser:
        browser.wait("document.documentElement?.dataset.ready")
        about: Any = dict(part.split(": ", 1) for part in browser.run("about.textContent").split(" · "))
    assert about["model"] == "Net"
    assert about["weights"] == "random, seed 0"
    assert about["versions"].startswith("fxquant ")
    assert about["date"].endswith(" UTC")
