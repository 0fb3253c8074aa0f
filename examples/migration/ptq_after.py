"""Post-training quantization, as torch's FX tutorial does it: rules by class and by name, calibration, conversion."""

import torch
from torch import nn

from fxquant.compat.quantization import QConfigMapping, get_default_qconfig
from fxquant.compat.quantize_fx import convert_fx, prepare_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(16, 10)).eval()


def main() -> tuple[torch.Tensor, torch.Tensor]:
    model, data = network(), [torch.randn(4, 3, 16, 16) for _ in range(8)]
    mapping = QConfigMapping().set_global(get_default_qconfig("x86")).set_object_type(nn.Linear, None)
    prepared = prepare_fx(model, mapping, (data[0],))
    with torch.no_grad():
        for x in data:
            prepared(x)
    quantized = convert_fx(prepared)
    return model(data[0]), quantized(data[0])


if __name__ == "__main__":
    expected, got = main()
    print(f"largest difference: {(got - expected).abs().max():.4f}")
