"""``python -m fxquant export``: a file of each kind, and what is refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxquant as fxq
from fxquant.__main__ import main
from fxquant.commandline import RUNTIMES
from fxquant.exporting.onnx.targets import TARGETS
from tests.sampling import one_of

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
"""


@pytest.fixture
def arguments(tmp_path: Path, translations_read_once: None) -> list[str]:
    (tmp_path / "nets.py").write_text(MODEL)
    return ["export", f"{tmp_path / 'nets.py'}:small", "--input", "2x3x8x8"]


def test_the_runtimes_are_those_that_exist():
    assert tuple(TARGETS) == RUNTIMES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ONNX Runtime.s kernels differ")  # on processors without VNNI
@pytest.mark.parametrize("target", one_of(len(RUNTIMES), RUNTIMES))  # tests/exporting has each
def test_onnx(arguments, target, tmp_path, capsys):
    path = tmp_path / "small.onnx"
    assert main([*arguments, "--to", "onnx", "--target", target, "--output", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"for backend '{target}'" in text
    assert "3 of 3 units run on integers in ONNX Runtime" in text or target != "onnxruntime"
    assert path.stat().st_size > 1000


@pytest.mark.slow
def test_onnx_without_a_check(arguments, tmp_path, capsys):
    path = tmp_path / "small.onnx"
    assert main([*arguments, "--to", "onnx", "--no-check", "--output", str(path)]) == 0
    assert "Nothing was run" in capsys.readouterr().out


def test_a_file_of_fxquant(arguments, tmp_path, capsys):
    path = tmp_path / "small.fxq"
    assert main([*arguments, "--to", "fxq", "--output", str(path)]) == 0
    assert "fxquant.nn.QuantizedConv" in capsys.readouterr().out
    assert fxq.load(path)(torch.zeros(2, 3, 8, 8)).shape == (2, 4)


@pytest.mark.slow
def test_a_program_of_torch_export(arguments, tmp_path, capsys, fresh):
    path = tmp_path / "small.pt2"
    assert main([*arguments, "--to", "pt2", "--output", str(path)]) == 0
    assert "for torch.export.load" in capsys.readouterr().out
    code = "import sys, torch, fxquant.exporting.operators\n"
    code += "print(torch.export.load(sys.argv[1]).module()(torch.zeros(2, 3, 8, 8)).shape)"
    done = fresh(code, path, strict=False)
    assert done.stdout == "torch.Size([2, 4])\n", done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_a_file_that_exists_is_kept(arguments, tmp_path, capsys):
    path = tmp_path / "small.onnx"
    path.write_text("before")
    assert main([*arguments, "--to", "onnx", "--output", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"ArtifactError: the file exists already\n  at:       {path}\n"
        "  expected: a new name\n  hint:     --overwrite takes its place\n"
    )
    assert path.read_text() == "before"
    assert main([*arguments, "--to", "onnx", "--no-check", "--output", str(path), "--overwrite"]) == 0


def test_mistakes(arguments, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, "--to", "onx"])
    assert "did you mean 'onnx'?" in capsys.readouterr().err
