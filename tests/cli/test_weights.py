from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from fxquant.cli.weights import load_weights
from fxquant.errors import InputError


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


STATE = net().state_dict()


@pytest.mark.parametrize(
    "saved",
    [
        STATE,
        {"state_dict": STATE, "epoch": 3},
        {"model": {f"module.{name}": value for name, value in STATE.items()}},
        {f"_orig_mod.module.{name}": value for name, value in STATE.items()},
        {f"module._orig_mod.{name}": value for name, value in STATE.items()},
    ],
)
def test_checkpoints_as_training_scripts_write_them(saved: Any, tmp_path: Path) -> None:
    torch.save(saved, tmp_path / "weights.pt")
    model = net()
    load_weights(model, tmp_path / "weights.pt")
    assert all(torch.equal(value, STATE[name]) for name, value in model.state_dict().items())


def test_safetensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "weights.safetensors")
    model = net()
    load_weights(model, tmp_path / "weights.safetensors")
    assert torch.equal(model[3].weight, STATE["3.weight"])


def refusal(write: Callable[[Path], object], path: Path) -> str:
    write(path)
    with pytest.raises(InputError) as caught:
        load_weights(net(), path)
    return str(caught.value)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    assert refusal(lambda path: None, path).startswith("there is no such file of weights")
    assert refusal(lambda path: None, tmp_path).startswith("there is no such file of weights")
    assert "these weights cannot be loaded" in refusal(lambda path: path.write_text("no weights"), path)
    for content in (b"", b"hello\n", b"i", b"\x80\x02", b"(dp0\n.", bytes(range(256)), b"PK\x03\x04broken"):
        wrong = content
        assert "these weights cannot be loaded" in refusal(lambda path, wrong=wrong: path.write_bytes(wrong), path)
    for text in ("junk\n", "no weights", "", "\x80"):
        assert refusal(lambda path, text=text: path.write_text(text), path) == (
            "these weights cannot be loaded\n"
            f"  at:       {path}\n"
            "  got:      no file of torch.save\n"
            "  expected: a state dict, as torch.save or safetensors writes it\n"
            "  hint:     torch.save(model.state_dict(), path) writes one; "
            "the name of one of safetensors ends in .safetensors"
        )
    for broken in (b"\x80\x02", b"PK\x03\x04broken"):
        found = refusal(lambda path, broken=broken: path.write_bytes(broken), path)
        assert "no file of torch.save" not in found
        assert "Error: " in found
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    load_weights(net(), path)  # the format of before torch 1.6
    assert "other objects in a file are code" in refusal(lambda path: torch.save(net(), path), path)
    assert "this file holds no weights" in refusal(lambda path: torch.save([1, 2], path), path)
    assert "a dict without tensors" in refusal(lambda path: torch.save({}, path), path)
    assert "a dict of epoch, best" in refusal(lambda path: torch.save({"epoch": 1, "best": 2}, path), path)
    other = tmp_path / "w.safetensors"
    assert "these weights cannot be loaded" in refusal(lambda path: path.write_text("no weights"), other)


def test_weights_of_another_model(tmp_path: Path) -> None:
    state = {**STATE, "3.weight": torch.zeros(2, 9), "4.bias": torch.zeros(1)}
    del state["0.bias"]
    path = tmp_path / "w.pt"
    assert refusal(lambda path: torch.save(state, path), path) == (
        "these weights are those of another model\n"
        f"  at:       {path}\n"
        "  got:      0.bias: not in the file\n"
        "            4.bias: not in the model\n"
        "            3.weight: [2, 9] in the file, [2, 16] in the model\n"
        "  expected: the 9 tensors of Sequential"
    )


def test_old_names_and_ties(tmp_path: Path) -> None:
    """State dicts may lack what their modules fill in by themselves, and have names that modules rename."""
    state = {name: value for name, value in STATE.items() if not name.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "w.pt")
    model = net()
    load_weights(model, tmp_path / "w.pt")
    assert torch.equal(model[3].weight, STATE["3.weight"])
