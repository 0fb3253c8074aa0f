"""What cannot be written is refused before the work, and nothing half written is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import ArtifactError, CalibrationError, FxQuantError


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    return fxq.quantize(net, [x], progress=False)


def refused(model: Any, path: Path, **arguments: Any) -> str:
    with pytest.raises(FxQuantError) as caught:
        fxq.save(model, path, **arguments)
    return str(caught.value)


def test_a_file_that_exists_stays(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.fxq"
    path.write_text("mine")
    assert "the file exists already" in refused(model, path)
    assert path.read_text() == "mine"
    fxq.save(model, path, overwrite=True)
    assert fxq.inspect_artifact(path).kind == "int8"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.fxq"]


def test_places_that_cannot_be_written_to(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"no folder {tmp_path / 'none'}" in refused(model, tmp_path / "none" / "a.fxq")
    assert "a folder of that name" in refused(model, tmp_path, overwrite=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "no right to write into the folder" in refused(model, tmp_path / "a.fxq")


def test_a_full_disk_is_seen_before_the_work(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "the disk is too full" in refused(model, tmp_path / "a.fxq")
    assert list(tmp_path.iterdir()) == []


WRITE = """
import resource, signal, sys
import torch
import fxquant as fxq

model = fxq.quantize(torch.nn.Sequential(torch.nn.Linear(256, 256)).eval(), [torch.randn(64, 256)], progress=False)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    fxq.save(model, sys.argv[1], overwrite=True)
except fxq.errors.ArtifactError as error:
    print(error)
"""


def test_a_disk_that_is_full_in_the_middle_leaves_what_was_there(fresh: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.fxq"
    path.write_text("mine")
    run = fresh(WRITE, path, strict=False)
    assert "the file cannot be written" in run.stdout, run.stderr
    assert path.read_text() == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.fxq"]


@pytest.mark.parametrize("make", [nn.Linear, lambda *sizes: "model"], ids=["layer", "text"])
def test_what_is_no_converted_model(make: Callable[..., Any], tmp_path: Path) -> None:
    assert "save takes a model that convert or prepare gave" in refused(make(2, 2), tmp_path / "a.fxq")


def test_a_model_in_training_that_saw_nothing(tmp_path: Path) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval(), torch.randn(64, 4)
    assert "they never saw a value" in refused(fxq.prepare_qat(net.train(), x), tmp_path / "a.fxq")
    assert list(tmp_path.iterdir()) == []


def test_a_shell_without_qparams(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    prepared = fxq.prepare(net, torch.randn(2, 3, 8, 8))
    for form in ("int8", "reference", "fake_quant"):
        shell = fxq.convert(prepared, to=form, allow_uncalibrated=True)
        with pytest.raises((CalibrationError, ArtifactError), match="without calibration"):
            fxq.save(shell, tmp_path / "a.fxq")


def test_hooks_and_notes(model: Any, tmp_path: Path) -> None:
    assert "notes are strings" in refused(model, tmp_path / "a.fxq", notes={"a": 1})
    layer = model.get_submodule("0")
    handle = layer.register_forward_hook(lambda *_: None)
    assert "a module with hooks cannot be written" in refused(model, tmp_path / "a.fxq")
    handle.remove()
    model.register_forward_hook(lambda *_: None)
    assert "a model with hooks cannot be written" in refused(model, tmp_path / "a.fxq")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 7, "", "a\0b", b"name"])
def test_what_is_no_path(model: Any, path: Any) -> None:
    for use in (lambda: fxq.save(model, path), lambda: fxq.load(path), lambda: fxq.inspect_artifact(path)):
        with pytest.raises(ArtifactError, match="this is no path of a file"):
            use()


def test_names_that_no_system_takes(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="the file cannot be written"):
        fxq.save(model, tmp_path / ("a" * 300))
    with pytest.raises(ArtifactError, match="notes are strings"):
        fxq.save(model, tmp_path / "net.fxq", notes=["a"])  # type: ignore[arg-type]
