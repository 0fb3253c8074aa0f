"""Handwritten digits, 1,797 pictures of 8 x 8 pixels (UCI repository, CC BY 4.0), and a network for them."""

from __future__ import annotations

import gzip
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fxquant.errors import SampleError
from fxquant.registry import did_you_mean
from fxquant.samples.photographs import SCIKIT_LEARN

_MEMBER = "sklearn/datasets/data/digits.csv.gz"
_TRAIN = 1200
"""The first pictures; others wrote the rest."""
_HIGHEST = 16.0
"""Of the values of a pixel; the lowest is 0."""


def digits(split: Literal["train", "test"] = "train") -> tuple[Tensor, Tensor]:
    """Return all pictures of one part, and their digits.

    Args:
        split: ``"train"``, of 1,200 pictures, or ``"test"``, of 597.

    Returns:
        ``(images, labels)``: float32 [N, 1, 8, 8] in [0, 1], and int64 [N], 0 to 9.

    Raises:
        SampleError: the package cannot be fetched, or there is no such part.
    """
    parts = {"train": slice(None, _TRAIN), "test": slice(_TRAIN, None)}
    if split not in parts:
        known = " or ".join(map(repr, parts))
        raise SampleError(
            "the digits have no such part", got=repr(split), expected=known, hint=did_you_mean(split, parts)
        )
    lines = gzip.decompress(SCIKIT_LEARN.read(_MEMBER)).decode().split()
    rows = torch.tensor([[int(value) for value in line.split(",")] for line in lines])[parts[split]]
    return rows[:, :-1].reshape(-1, 1, 8, 8) / _HIGHEST, rows[:, -1].contiguous()


class DigitNet(nn.Module):
    """Two convolutions with batch norms, and a linear layer: float32 [N, 1, 8, 8] becomes [N, 10]."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.head = nn.Linear(2 * channels * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.head(F.relu(self.bn2(self.conv2(x))).flatten(1))


def train_digits(model: nn.Module, epochs: int = 8, rate: float = 0.05, seed: int = 0) -> nn.Module:
    """Train a model on the digits by stochastic gradient descent, in batches of 60; seconds on one core.

    Args:
        model: Changed in place; left in evaluation mode.
        epochs: How often each picture is seen.
        rate: The learning rate at the start; it falls to 0 along a cosine.
        seed: Of the order of the pictures.

    Returns:
        ``model``.
    """
    images, labels = digits("train")
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for picked in torch.randperm(len(images), generator=generator).split(60):
            optimizer.zero_grad()
            F.cross_entropy(model(images[picked]), labels[picked]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()
