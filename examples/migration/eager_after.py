"""Eager mode: stubs where values become integers, FloatFunctional for a sum, fused modules, prepare and convert.

The pattern is that of "Static Quantization with Eager Mode in PyTorch", a tutorial of PyTorch, and of the quantizable
models of pytorch/vision (torchvision/models/quantization).
"""

import torch
from torch import nn

from fxquant.compat.quantization import DeQuantStub, QuantStub, convert, fuse_modules, get_default_qconfig, prepare
from fxquant.compat.stubs import FloatFunctional


class Block(nn.Module):
    """Two convolutions with batch norms, and what comes in added to what comes out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu, self.skip_add = nn.ReLU(), FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.skip_add.add_relu(self.bn2(self.conv2(y)), x)


class Network(nn.Module):
    """A stem and a block between stubs, and a head that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.stem, self.relu = nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU()
        self.block = Block(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(self.relu(self.stem(self.quant(x))))
        return self.head(self.dequant(y).mean((2, 3)))

    def fuse_model(self) -> None:
        fuse_modules(self, [["stem", "relu"]], inplace=True)
        fuse_modules(self.block, [["conv1", "bn1", "relu"], ["conv2", "bn2"]], inplace=True)


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    float_model, data = Network().eval(), [torch.randn(4, 3, 24, 24) for _ in range(6)]
    model = Network().eval()
    model.load_state_dict(float_model.state_dict())
    model.fuse_model()
    model.qconfig = get_default_qconfig("x86")
    model.head.qconfig = None
    prepare(model, inplace=True)
    with torch.no_grad():
        for x in data:
            model(x)
    convert(model, inplace=True)
    return float_model, model, (data[0],)


if __name__ == "__main__":
    before, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - before(*inputs)).abs().max():.4f}")
