"""What writes a file says in the layout of errors why it cannot: a folder, no folder, nowhere to write to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.cli import conformance
from fxquant.demo.story import run_demo
from fxquant.errors import FxQuantError, InputError, SampleError, writing
from fxquant.reporting.plots import Plots
from fxquant.samples.archives import Archive
from fxquant.training.checkpoint import Checkpoint
from fxquant.training.resumable_run import Memory

X = torch.rand(4, 8)


@pytest.fixture(scope="module")
def prepared() -> fxq.Quantizer:
    torch.manual_seed(0)
    return fxq.calibrate(fxq.prepare(nn.Sequential(nn.Linear(8, 8)).eval(), X), [X], progress=False)


def refusal(run: Callable[[], object], kind: type[FxQuantError] = InputError) -> list[str]:
    with pytest.raises(kind) as caught:
        run()
    return str(caught.value).splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file, where a folder would have to be."""
    path = tmp_path / "file"
    path.write_text("text")
    return path


HINTS = {
    "report": "report(model, path, data) takes the path of a file in a folder of yours",
    "plots": "save(folder) takes a folder, which need not be there",
    "checkpoint": 'checkpoint="folder" names a folder, which need not be there',
    "picture": "--output DIR names another folder",
}


def test_a_report_into_a_folder_and_where_the_hint_says(prepared: fxq.Quantizer, tmp_path: Path) -> None:
    inside = tmp_path / "report.html"
    assert refusal(lambda: fxq.report(prepared, tmp_path)) == [
        "the report cannot be written",
        f"  at:       {tmp_path}",
        "  got:      a folder",
        "  expected: a file",
        f"  hint:     give {inside}",
    ]
    assert fxq.report(prepared, inside) == inside


def test_a_report_below_a_file(prepared: fxq.Quantizer, file: Path) -> None:
    assert refusal(lambda: fxq.report(prepared, file / "report.html")) == [
        "the report cannot be written",
        f"  at:       {file}",
        "  got:      File exists",
        "  expected: a place that can be made and written to",
        f"  hint:     {HINTS['report']}",
    ]
    folder = file.parent / "folder of mine"
    assert fxq.report(prepared, folder / "report.html").is_file()


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a file system on which nothing can be made")
def test_a_report_where_nothing_can_be_made(prepared: fxq.Quantizer) -> None:
    lines = refusal(lambda: fxq.report(prepared, "/proc/fxquant/report.html"))
    assert lines[:2] == ["the report cannot be written", "  at:       /proc/fxquant"]


@pytest.mark.parametrize("path", [None, 3, [Path("report.html")]])
def test_a_report_without_a_path(prepared: fxq.Quantizer, path: Any) -> None:
    assert refusal(lambda: fxq.report(prepared, path)) == [
        "the report needs the path of a file",
        f"  got:      {path!r}",
        "  expected: a str or a pathlib.Path",
    ]


def test_plots(prepared: fxq.Quantizer, file: Path, tmp_path: Path) -> None:
    plots = Plots(prepared)
    lines = refusal(lambda: plots.save(file))
    assert lines[0] == "the plots cannot be written"
    assert lines[-1] == f"  hint:     {HINTS['plots']}"
    lines = refusal(lambda: plots.save(tmp_path / "plots", "pgn"))
    assert lines[:2] == ["matplotlib writes no such form", "  got:      'pgn'"]
    assert lines[-1] == "  hint:     did you mean 'png'?"
    assert {path.suffix for path in plots.save(tmp_path / "plots", "png")} == {".png"}


def test_a_checkpoint(prepared: fxq.Quantizer, file: Path, tmp_path: Path) -> None:
    for folder in (file, file / "inside"):
        lines = refusal(
            lambda at=folder: fxq.adaround(prepared, [X], checkpoint=at, iterations=1, progress=False)  # type: ignore[misc]
        )
        assert lines[0] == "the checkpoint cannot be written"
        assert lines[-1] == f"  hint:     {HINTS['checkpoint']}"
    checkpoint = Checkpoint(tmp_path / "folder", {"seed": "1"})
    (tmp_path / "folder" / "0000.pt").mkdir()
    lines = refusal(lambda: checkpoint.save(0, {"V": torch.zeros(2), "before": 1.0, "after": 0.5}))
    assert lines[0] == "the checkpoint cannot be written"
    assert fxq.adaround(prepared, [X], checkpoint=tmp_path / "new", iterations=1, progress=False) is not None


def test_values_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Memory(0) as memory:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        lines = refusal(lambda: memory.keep("one", {"x": torch.zeros(1 << 14)}))
        assert lines[0] == "a temporary file cannot be written"
        assert (
            lines[-1] == "  hint:     the variable TMPDIR names another folder; a larger memory= puts less into files"
        )
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

        def full(*args: object, **options: object) -> torch.Tensor:
            raise RuntimeError("unable to resize file to the right size: No space left on device (28)\nmore")

        monkeypatch.setattr(torch, "from_file", full)
        lines = refusal(lambda: memory.keep("one", {"x": torch.zeros(1 << 14)}))
        assert lines[2] == "  got:      unable to resize file to the right size: No space left on device (28)"
        monkeypatch.undo()
    with Memory(1 << 20) as memory:
        values = {"x": torch.zeros(1 << 14)}
        assert memory.keep("one", values) is values


def test_conformance_tables(file: Path, tmp_path: Path) -> None:
    options = argparse.Namespace(adapter=[], tool=["fxquant"], operator="linear", markdown=file / "tables.md")
    assert refusal(lambda: conformance.run(options))[0] == "the tables cannot be written"
    options.markdown = tmp_path / "tables.md"
    assert conformance.run(options) == 0
    assert options.markdown.is_file()


def test_the_picture_of_the_demo_before_all_else(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = refusal(lambda: run_demo("", file, 1))
    assert lines[0] == "the picture cannot be written"
    assert lines[-1] == f"  hint:     {HINTS['picture']}"
    assert capsys.readouterr().out == ""


def test_the_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXQUANT_CACHE", str(file))
    lines = refusal(lambda: Archive("tiny==1.0", "0").path(), SampleError)
    assert (lines[0], lines[-1]) == ("the cache folder cannot be used", "  hint:     FXQUANT_CACHE names another")


def test_passes_that_are_dumped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXQUANT_DUMP_DIR", str(file))
    lines = refusal(lambda: fxq.prepare(nn.Sequential(nn.Linear(8, 8)).eval(), X))
    assert lines[0] == "the folder of FXQUANT_DUMP_DIR cannot be used"


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(ValueError, match="mine"), writing("the report", "report.html"):
        raise ValueError("mine")
    with pytest.raises(InputError) as caught, writing("the report", "report.html"):
        raise PermissionError
    assert str(caught.value).splitlines()[:3] == [
        "the report cannot be written",
        "  at:       report.html",
        "  got:      PermissionError",
    ]
    assert isinstance(caught.value.__cause__, PermissionError)
