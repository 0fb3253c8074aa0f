"""Quantization-aware training, as torch's FX guide does it: fake quantization, frozen observers, conversion.

The pattern is that of "FX Graph Mode Quantization User Guide", a tutorial of PyTorch, and of the training scripts of
pytorch/vision (references/classification/train_quantization.py).
"""

import copy

import torch
from torch import nn
from torch.ao.quantization import disable_observer, get_default_qat_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)).train()


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    model, x, target = network(), torch.randn(16, 1, 16, 16), torch.randint(0, 4, (16,))
    prepared = prepare_qat_fx(model, get_default_qat_qconfig_mapping("fbgemm"), (x,))
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.05)
    for step in range(6):
        if step == 4:
            prepared.apply(disable_observer)
        optimizer.zero_grad()
        nn.functional.cross_entropy(prepared(x), target).backward()
        optimizer.step()
    prepared.eval()
    return prepared, convert_fx(copy.deepcopy(prepared)), (x,)


if __name__ == "__main__":
    trained, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - trained(*inputs)).abs().max():.4f}")
