"""Observers of one's own choice, and rules by class, by name and by regular expression, for a residual network.

The pattern is that of the examples of ``QConfigMapping`` in PyTorch's documentation, and of deployment scripts that
keep the first and the last layer in float.
"""

import torch
from torch import nn
from torch.ao.quantization import QConfig, QConfigMapping
from torch.ao.quantization.observer import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx


class Block(nn.Module):
    """Two convolutions, and what comes in added to what comes out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + x)


class Network(nn.Module):
    """A stem, two blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.block1, self.block2 = Block(32), Block(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block2(self.block1(torch.relu(self.stem(x)))).mean((2, 3)))


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model, data = Network().eval(), [torch.randn(4, 3, 24, 24) for _ in range(6)]
    activation = HistogramObserver.with_args(reduce_range=True)
    per_channel = PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    per_tensor = MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
    mapping = (
        QConfigMapping()
        .set_global(QConfig(activation=activation, weight=per_channel))
        .set_object_type(nn.Linear, QConfig(activation=MinMaxObserver.with_args(reduce_range=True), weight=per_tensor))
        .set_module_name_regex("block2.*conv2", QConfig(activation=activation, weight=per_tensor))
        .set_module_name("stem", None)
    )
    prepared = prepare_fx(model, mapping, example_inputs=(data[0],))
    with torch.inference_mode():
        for x in data:
            prepared(x)
    return model, convert_fx(prepared), (data[0],)


if __name__ == "__main__":
    float_model, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - float_model(*inputs)).abs().max():.4f}")
