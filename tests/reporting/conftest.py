"""A small model with everything that a report can show, and a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from tests.reporting.live import Live

X = ((torch.arange(2 * 3 * 8 * 8) * 67 % 257 - 128) / 64).reshape(2, 3, 8, 8)
"""From -2 to 2. Made of integers, so that it is the same on every machine, which ``linspace`` is not."""


class Net(nn.Module):
    """A residual block, an operator that stays float, and one that the configuration leaves in float."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.side = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)
        self.kept = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.relu(self.side(x) + x)
        return self.kept(torch.log_softmax(self.head(x.mean((2, 3))), 1))


class Halves(nn.Module):
    """Has sizes, items of a tuple and a check, beside a slice and a constant that are tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.shift = torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.size(1) == 8, "eight features")
        first, second = self.linear(x).chunk(2, -1)
        joined = torch.cat((second, first[:, :2]), -1).reshape(x.shape[0], x.size(1) - 2)
        return joined + self.shift[2:]


def mapping() -> fxq.QConfigMapping:
    return fxq.get_default_qconfig_mapping().set_module_name("kept", None)


@pytest.fixture(scope="session")
def planned() -> fxq.Quantizer:
    return fxq.prepare(Net().eval(), X, mapping())


@pytest.fixture(scope="session")
def calibrated() -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(Net().eval(), X, mapping()), [X, 2 * X], progress=False)


@pytest.fixture(scope="session")
def searched(calibrated: fxq.Quantizer) -> fxq.PrecisionSearch:
    return fxq.search_precision(
        calibrated, [X], budget=fxq.Budget(size=0.9), candidates=["W4A4", "W4A8", "W8A8"], progress=False
    )


@pytest.fixture(scope="session")
def halves() -> fxq.Quantizer:
    return fxq.prepare(Halves().eval(), torch.ones(2, 8))


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    "--virtual-time-budget=20000",  # of the page's clock: it ends when the page has nothing more to do
)


@pytest.fixture(scope="session")
def documents() -> dict[tuple[object, ...], str]:
    """What pages became that were opened."""
    return {}


@pytest.fixture
def opened(tmp_path: Path, documents: dict[tuple[object, ...], str]) -> Callable[..., str]:
    """Opens a page in a headless browser, lets a script act on it, and returns the document as it then is.

    Without the scripts that it holds.

    With ``paper``, it is printed into that file, and nothing is returned.

    The script is the body of a function ``act``; what it throws, and what the page throws, fails the test.
    """
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")

    def run(
        page: Path,
        address: str = "",
        script: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        paper: Path | None = None,
    ) -> str:
        seen = (page.read_bytes(), address, script, width, height)
        if paper is None and seen in documents:
            return documents[seen]
        copy = tmp_path / "opened.html"
        watch = (
            "addEventListener('error', (e) => document.body.dataset.error = e.message);"
            "addEventListener('securitypolicyviolation', (e) => document.body.dataset.error = e.blockedURI);"
        )
        act = f"<script>addEventListener('load', () => setTimeout(() => {{ {script} }}, 50));</script>"
        text = page.read_text(encoding="utf-8").replace("<body>", f"<body><script>{watch}</script>", 1)
        copy.write_text(text.replace("</body>", f"{act}</body>"), encoding="utf-8")
        command = [
            CHROMIUM,
            *FLAGS,
            f"--window-size={width},{height}",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom" if paper is None else f"--print-to-pdf={paper}",
            f"{copy.as_uri()}#{address}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        if paper is not None:
            return ""
        assert 'data-ready="true"' in done.stdout, done.stdout[-2000:]
        failed = re.search(r'data-error="([^"]*)"', done.stdout)
        assert failed is None, failed and failed[1]
        documents[seen] = re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
        return documents[seen]

    return run


WATCH = """
    window.errors = [];
    window.started = 0;
    addEventListener("error", (event) => errors.push(event.message));
    addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
    addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
    window.Worker = class extends Worker { constructor(...given) { super(...given); started += 1; } };
"""


@pytest.fixture
def live(tmp_path: Path) -> Callable[..., AbstractContextManager[Live]]:
    """Opens a page in a headless browser in real time; what the page throws fails the test."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    flags = [flag for flag in FLAGS if "virtual-time" not in flag]
    command = [CHROMIUM, *flags, "--window-size=1280,900", f"--user-data-dir={tmp_path / 'live'}"]

    @contextmanager
    def opened(page: Path, address: str = "", before: str = "") -> Iterator[Live]:
        with Live(command, page, address, f"{WATCH};{before}") as browser:
            yield browser
            assert browser.run("errors") == []

    return opened
