"""Equalization: columns of a linear layer whose ranges differ by much, and weights with one scale for each tensor.

The pattern is that of the tests of equalization in pytorch (test/quantization/fx/test_equalize_fx.py), and of its
evaluation scripts, which quantize all layers and equalize some of them.
"""

import torch
from torch import nn
from torch.ao.quantization import QConfigMapping, default_qconfig
from torch.ao.quantization.fx._equalize import default_equalization_qconfig
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    with torch.no_grad():  # some channels are large where they are made, and small where they are read
        large = torch.logspace(-1, 1, 64)[torch.randperm(64)]
        model[0].weight.mul_(large[:, None])
        model[0].bias.mul_(large)
        model[2].weight.div_(large)
    return model


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    model, data = network(), [torch.randn(64, 32) for _ in range(4)]
    mapping = QConfigMapping().set_global(default_qconfig)
    equalization = QConfigMapping().set_global(default_equalization_qconfig).set_module_name("4", None)
    prepared = prepare_fx(model, mapping, (data[0],), _equalization_config=equalization)
    with torch.no_grad():
        for x in data:
            prepared(x)
    return model, convert_fx(prepared), (data[0],)


if __name__ == "__main__":
    float_model, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - float_model(*inputs)).abs().max():.4f}")
