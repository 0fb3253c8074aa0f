"""Fashion-MNIST, 70,000 labelled pictures of clothes (MIT), and a small residual network for them."""

from __future__ import annotations

import gzip
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fxquant.errors import SampleError
from fxquant.registry import did_you_mean
from fxquant.samples.archives import DebianPackage

FASHION_MNIST = DebianPackage(
    "dataset-fashion-mnist==0.0~git20200523.55506a9-1",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
"""The names of the classes, in the order of their numbers."""

_FOLDER = "usr/share/datasets/fashion-mnist/"
_FILES = {"train": "train", "test": "t10k"}
_MEAN, _STD = 0.2860, 0.3530
"""Of all training pixels, for values in [0, 1]."""
_IMAGE_HEAD, _LABEL_HEAD = 16, 8
"""Bytes before the values of a file of images and of one of labels."""


def fashion_mnist(split: Literal["train", "test"] = "train") -> tuple[Tensor, Tensor]:
    """Return all pictures of one part, and their classes.

    Args:
        split: ``"train"``, of 60,000 pictures, or ``"test"``, of 10,000.

    Returns:
        ``(images, labels)``: float32 [N, 1, 28, 28], normalised, and int64 [N], 0 to 9.

    Raises:
        SampleError: the package cannot be fetched, or there is no such part.
    """
    if split not in _FILES:
        known = " or ".join(map(repr, _FILES))
        hint = did_you_mean(split, _FILES)
        raise SampleError("Fashion-MNIST has no such part", got=repr(split), expected=known, hint=hint)
    members = [f"{_FOLDER}{_FILES[split]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    pixels, classes = map(gzip.decompress, FASHION_MNIST.read_all(members).values())
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8, offset=_IMAGE_HEAD).view(-1, 1, 28, 28)
    labels = torch.frombuffer(bytearray(classes), dtype=torch.uint8, offset=_LABEL_HEAD)
    return (images.float().div_(255) - _MEAN) / _STD, labels.long()


class Block(nn.Module):
    """Two convolutions with batch norms, and what went in added at the end."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        shortcut = (nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential(*(shortcut if (channels_in, stride) != (channels, 1) else ()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResidualNet(nn.Module):
    """Three stages of 16, 32 and 64 channels with one block each; 28 x 28 pictures, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.stages = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean((2, 3)))
