"""Writes what commands are given in tests: a model, its weights, and folders of small images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

MODEL = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

def batches():
    torch.manual_seed(1)
    for _ in range(3):
        yield torch.randn(2, 3, 8, 8), torch.tensor([0, 1])

def one_batch():
    return [torch.ones(2, 3, 8, 8)]

def nothing():
    return []

def number():
    return 3

def failing():
    yield torch.ones(2, 3, 8, 8)
    raise ValueError("no more")
"""

COLORS = {"blue": (60, 60, 200), "red": (200, 60, 60)}


def write_model(folder: Path) -> str:
    """Write a module of functions; return how a command line names the model in it."""
    (folder / "nets.py").write_text(MODEL)
    return f"{folder / 'nets.py'}:small"


def write_images(folder: Path, each: int = 6) -> Path:
    """Write a folder for each color, with noisy images of it that are not square."""
    generator = torch.Generator().manual_seed(0)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for index in range(each):
            noise = torch.randint(-40, 40, (10, 12, 3), generator=generator)
            pixels = (torch.tensor(color) + noise).clamp(0, 255).flatten().tolist()
            Image.frombytes("RGB", (12, 10), bytes(pixels)).save(folder / name / f"{index}.png")
    return folder


def write_weights(folder: Path) -> Path:
    """Write weights with which the model above tells blue (0) from red (1)."""
    names: dict[str, Any] = {}
    exec(MODEL, names)
    model: nn.Sequential = names["small"]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model[0].weight[0, 2], model[0].weight[1, 0] = 1.0, 1.0
        model[4].weight[0, 0], model[4].weight[1, 1] = 1.0, 1.0
    path = folder / "weights.pt"
    torch.save(model.state_dict(), path)
    return path
