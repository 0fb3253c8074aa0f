"""First steps: a net of three layers, quantized by hand, one stage after the other.

python examples/first_steps.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fxquant as fxq


class Net(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.conv2(x).relu()
        return self.head(x.mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    data = [torch.randn(8, 3, 32, 32) for _ in range(4)]

    # 1. Trace, and decide: nothing is changed in `model`. Printing says what becomes int8, what stays float, and why.
    prepared = fxq.prepare(model, data[0])
    print(prepared)

    # 2. Calibrate: runs the float model and looks at the range of every value that will be quantized.
    fxq.calibrate(prepared, data, progress=False)

    # 3. Convert: real integers, or the same rounding simulated in float. Both can be made from one calibration.
    int8 = fxq.convert(prepared)
    simulated = fxq.convert(prepared, to="fake_quant")

    # What the modules hold is plain tensors.
    print()
    print(int8)
    for name, value in list(int8.state_dict().items())[:6]:
        print(f"{name:<24} {value.dtype!s:<14} {list(value.shape)}")

    with torch.no_grad():
        expected, integer, simulation = model(data[0]), int8(data[0]), simulated(data[0])
    print()
    print(f"largest logit            {expected.abs().max():.4f}")
    print(f"int8 against float       {(integer - expected).abs().max():.4f}")
    print(f"int8 against simulation  {(integer - simulation).abs().max():.4f}")


if __name__ == "__main__":
    main()
