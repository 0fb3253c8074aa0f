"""``torchrun -m fxquant quantize``: two processes write the file that one process writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import fxquant as fxq
from fxquant.__main__ import main
from fxquant.cli.torchrun import started_by_torchrun
from tests.cli.folder import write_images, write_model, write_weights

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_two_processes_write_the_file_of_one(tmp_path, capsys, fresh):
    spec, images, weights = write_model(tmp_path), write_images(tmp_path / "images"), write_weights(tmp_path)
    batches = ["--input", "1x3x8x8", "--batch-size", "1", "--batches", "3"]
    arguments = ["quantize", spec, "--weights", str(weights), "--data", str(images), *batches, "--output"]
    assert main([*arguments, str(tmp_path / "one.fxq")]) == 0
    one = capsys.readouterr().out
    torchrun = "import sys; from torch.distributed.run import main; main(sys.argv[1:])"
    two = ["--standalone", "--nproc-per-node", "2", "-m", "fxquant", *arguments, str(tmp_path / "two.fxq")]
    run = fresh(torchrun, *two, environment={**os.environ, "OMP_NUM_THREADS": "1"}, folder=ROOT, strict=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.replace("two.fxq", "one.fxq") == one
    first, second = (fxq.load(tmp_path / f"{name}.fxq").state_dict() for name in ("one", "two"))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_without_its_environment_nothing_is_initialized(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with started_by_torchrun() as rank:
        assert rank == 0
        assert not torch.distributed.is_initialized()
