"""The control of everything that may differ a little: the float model on numbers that carry noise of about 8 bits."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from tests.fuzz.case import Case
from tests.fuzz.inputs import Values
from tests.fuzz.source import draw

NOISE_DECIBELS = 45.0
"""Of the noise, about that of 8 bits."""


def with_noise(case: Case, number: int) -> Values:
    """The example, with noise."""
    return tuple(
        _noisy(value, case.seed + 2000 + 10 * number + place) if value.is_floating_point() else value
        for place, value in enumerate(case.example)
    )


def add_noise_to_weights(model: nn.Module, seed: int) -> None:
    """Weights round, too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_noisy(parameter, seed + zlib.crc32(name.encode())))


def _noisy(value: Tensor, seed: int) -> Tensor:
    size = float(value.square().mean().sqrt()) if value.numel() else 0.0
    return value + draw(seed, *value.shape) * 10 ** (-NOISE_DECIBELS / 20) * size
