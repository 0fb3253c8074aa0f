"""A network to calibrate, and the ranges that its observers saw."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv(x))
        y += y.mean((2, 3), keepdim=True)
        return self.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))


def ranges(prepared: fxq.Quantizer) -> dict[str, tuple[float, float]]:
    return {
        name: (observer.min_val.item(), observer.max_val.item())
        for name, observer in prepared.observers.items()
        if isinstance(observer, (fxq.HistogramObserver, fxq.MinMaxObserver))
    }
