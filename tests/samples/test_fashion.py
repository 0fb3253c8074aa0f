from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
import torch

from fxquant.errors import SampleError
from fxquant.samples import fashion
from fxquant.samples.archives import cache_dir
from fxquant.samples.fashion import CLASSES, FASHION_MNIST, ResidualNet, fashion_mnist

PICTURES = {"train": [0] * 784 + [255] * 784 + [51] * 784, "t10k": [102] * 784}
LABELS = {"train": [9, 0, 3], "t10k": [1]}
MEAN, STD = 0.2860, 0.3530
ROUNDING = 1e-6
"""Of a division in float32, and of one in float64."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in the cache, built as the real one is, with four pictures."""
    monkeypatch.setenv("FXQUANT_CACHE", str(tmp_path))
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as tar:
        for part in PICTURES:
            for kind, head, values in (("images-idx3", 16, PICTURES), ("labels-idx1", 8, LABELS)):
                data = gzip.compress(b"\xff" * head + bytes(values[part]))
                info = tarfile.TarInfo(f"./usr/share/datasets/fashion-mnist/{part}-{kind}-ubyte.gz")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    data = content.getvalue()
    folder = cache_dir() / "packages" / FASHION_MNIST.requirement.replace("==", "-")
    folder.mkdir(parents=True)
    head = b"data.tar.xz".ljust(48) + str(len(data)).encode().ljust(10) + b"`\n"
    package = b"!<arch>\n" + head + data
    (folder / "fashion.deb").write_bytes(package)
    known = dataclasses.replace(FASHION_MNIST, sha256=hashlib.sha256(package).hexdigest())
    monkeypatch.setattr(fashion, "FASHION_MNIST", known)


@pytest.mark.usefixtures("package")
def test_pictures_are_normalised_and_labels_are_integers() -> None:
    images, labels = fashion_mnist()
    assert images.shape == (3, 1, 28, 28)
    assert images.dtype == torch.float32
    assert images.amin((1, 2, 3)).tolist() == images.amax((1, 2, 3)).tolist()
    expected = [(value - MEAN) / STD for value in (0.0, 1.0, 0.2)]
    assert images[:, 0, 0, 0].tolist() == pytest.approx(expected, abs=ROUNDING)
    assert labels.dtype == torch.int64
    assert [CLASSES[label] for label in labels] == ["ankle boot", "T-shirt", "dress"]


@pytest.mark.usefixtures("package")
def test_the_pictures_of_the_test_are_others() -> None:
    images, labels = fashion_mnist("test")
    assert images.mean().item() == pytest.approx((0.4 - MEAN) / STD, abs=ROUNDING)
    assert labels.tolist() == [1]


def test_another_part_is_refused() -> None:
    with pytest.raises(SampleError) as refusal:
        fashion_mnist("trian")
    assert str(refusal.value).splitlines() == [
        "Fashion-MNIST has no such part",
        "  got:      'trian'",
        "  expected: 'train' or 'test'",
        "  hint:     did you mean 'train'?",
    ]


def test_the_network_takes_the_pictures_and_learns() -> None:
    torch.manual_seed(0)
    model, x, labels = ResidualNet(), torch.randn(16, 1, 28, 28), torch.arange(16) % 10
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert model(x).shape == (16, len(CLASSES))
    assert losses[-1] < losses[0] / 2
    channels = [tuple(block.conv1.weight.shape[:2]) for block in model.stages]
    assert channels == [(16, 16), (32, 16), (64, 32)]
