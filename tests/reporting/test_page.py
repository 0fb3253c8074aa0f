from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fxquant as fxq
from fxquant.reporting import page as pages
from fxquant.reporting.facts import facts
from fxquant.reporting.page import SCRIPTS, STYLES, VENDOR_SCRIPTS, asset, embedded, page, write
from fxquant.reporting.subject import subject_of

ASSETS = Path(pages.__file__).parent / "assets"
LINES = 400


@pytest.fixture(scope="module")
def text(calibrated: fxq.Quantizer) -> str:
    return page(facts(subject_of(calibrated)))


def test_nothing_is_fetched(text: str) -> None:
    own = text
    for name in VENDOR_SCRIPTS:
        assert asset(name) in own
        own = own.replace(asset(name), "")
    assert re.findall(r"https?://(?!www\.w3\.org)", own) == []
    assert re.findall(r"<(?:link|img|iframe)|@import|\burl\(|\bfetch\(|XMLHttpRequest|\bsrc=", own) == []
    assert "default-src 'none'" in own


@pytest.mark.parametrize(
    "words", ["</script><script>alert(1)</script>", "<!--<script>", "a\u2028b", 'say "no" & {{data}}']
)
def test_strings_stay_strings(words: str) -> None:
    made = page({"title": words, "name": words})
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL)
    assert len(data) == 1
    assert json.loads(data[0])["name"] == words
    assert "alert(1)</script>" not in made
    assert made.count("<script") == 2 + len(VENDOR_SCRIPTS)
    assert json.loads(embedded({"x": words})) == {"x": words}


def test_every_asset_is_used_and_about_one_thing() -> None:
    own = {path.relative_to(ASSETS).as_posix() for path in ASSETS.rglob("*") if path.is_file()}
    assert own == {*SCRIPTS, *VENDOR_SCRIPTS, *STYLES, "report.html", "vendor/README.md"}
    for name in own:
        if not name.startswith("vendor/"):
            lines = asset(name).splitlines()
            assert len(lines) <= LINES
            assert name == "report.html" or re.match(r"// |/\* ", lines[0]), f"{name} does not say what it is about"
    licences = asset("vendor/README.md")
    assert all(f"`{Path(name).name}`" in licences for name in own if name.startswith("vendor/") and name[-1] != "d")


def test_the_file_is_written(tmp_path: Path, calibrated: fxq.Quantizer, text: str) -> None:
    target = write(facts(subject_of(calibrated)), tmp_path / "made" / "on demand" / "report.html")
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
