"""Post-training quantization, as torch's FX tutorial does it: rules by class and by name, calibration, conversion.

The pattern is that of "FX Graph Mode Post Training Static Quantization", a tutorial of PyTorch.
"""

import torch
from torch import nn

from fxquant.compat.quantization import QConfigMapping, get_default_qconfig
from fxquant.compat.quantize_fx import convert_fx, prepare_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    model, data = network(), [torch.randn(4, 3, 24, 24) for _ in range(8)]
    mapping = QConfigMapping().set_global(get_default_qconfig("x86")).set_object_type(nn.Linear, None)
    prepared = prepare_fx(model, mapping, (data[0],))
    with torch.no_grad():
        for x in data:
            prepared(x)
    return model, convert_fx(prepared), (data[0],)


if __name__ == "__main__":
    float_model, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - float_model(*inputs)).abs().max():.4f}")
