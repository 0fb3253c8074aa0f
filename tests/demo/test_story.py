"""The whole story runs in tests/cli/test_demo.py."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.demo.story import layer_sqnr, load, run_demo, saved_bytes
from fxquant.errors import SampleError
from fxquant.measure.noise import sqnr
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


def test_one_value_for_each_layer_that_multiplies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)).eval()
    x = torch.randn(4, 3, 8, 8)
    plain = replace(fxq.get_default_qconfig(), correct_bias=False)  # corrected, the last may be nearer
    prepared = fxq.prepare(model, x, plain)
    prepared.observe(x)
    int8 = fxq.convert(prepared)
    (first, first_db), (last, last_db) = layer_sqnr(prepared, int8, x)
    assert (first, last) == ("0", "4")
    assert first_db > last_db > 20  # noise adds up
    with torch.no_grad():
        assert (
            abs(last_db - sqnr(model(x), int8(x))) < 1e-3
        )  # the last layer is the output: the same value, dequantized
