"""Quantization-aware training, as torch's FX guide does it: fake quantization, frozen observers, conversion."""

import torch
from torch import nn

from fxquant.compat.quantization import disable_observer, get_default_qat_qconfig_mapping
from fxquant.compat.quantize_fx import convert_fx, prepare_qat_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).train()


def main() -> tuple[torch.Tensor, torch.Tensor]:
    x, target = torch.randn(16, 1, 8, 8), torch.randint(0, 4, (16,))
    prepared = prepare_qat_fx(network(), get_default_qat_qconfig_mapping("fbgemm"), (x,))
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.05)
    for step in range(6):
        if step == 4:
            prepared.apply(disable_observer)
        optimizer.zero_grad()
        nn.functional.cross_entropy(prepared(x), target).backward()
        optimizer.step()
    prepared.eval()
    return prepared(x), convert_fx(prepared)(x)


if __name__ == "__main__":
    expected, got = main()
    print(f"largest difference: {(got - expected).abs().max():.4f}")
