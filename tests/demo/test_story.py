"""The whole story runs in tests/cli/test_demo.py."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn

from fxquant.demo.story import load, run_demo, saved_bytes
from fxquant.errors import SampleError
from fxquant.samples.networks import mobilenet_v2


def test_weights_that_cannot_be_had_are_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SampleError) as refusal:
        run_demo(str(tmp_path / "none.pth"), tmp_path, 1)
    lines = str(refusal.value).splitlines()
    assert lines[0] == "these weights cannot be loaded"
    assert "No such file" in lines[2]
    assert lines[-1] == "  hint:     without --weights they come from the package registry"
    torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(SampleError, match="expected: a state dict of torchvision's mobilenet_v2"):
        load(str(tmp_path / "other.pth"))


def test_weights_on_disk_are_taken(tmp_path: Path) -> None:
    model = mobilenet_v2()
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    loaded = load(str(tmp_path / "mine.pth"))
    assert not loaded.training
    assert torch.equal(loaded.classifier[1].weight, model.classifier[1].weight)


def test_size_is_that_of_the_file() -> None:
    model = nn.Linear(100, 100)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert saved_bytes(model) == len(file.getvalue()) > 40_000
