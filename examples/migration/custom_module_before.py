"""A module of one's own, which quantizes itself: one class for each stage, and configurations that name them.

The pattern is that of ``PrepareCustomConfig`` and ``ConvertCustomConfig`` in PyTorch's documentation, and of the tests
of custom modules in pytorch (test/quantization/fx/test_quantize_fx.py).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.ao.nn.quantized import Linear as QuantizedLinear
from torch.ao.quantization import QConfigMapping, default_qconfig
from torch.ao.quantization.fx.custom_config import ConvertCustomConfig, PrepareCustomConfig
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx


class Gated(nn.Module):
    """A linear layer of the user's own."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class ObservedGated(Gated):
    """What stands for it while values are measured."""

    @classmethod
    def from_float(cls, float_module: Gated) -> ObservedGated:
        observed = cls(float_module.linear)
        observed.qconfig = observed.linear.qconfig = float_module.qconfig
        return observed


class QuantizedGated(nn.Module):
    """What stands for it in the end: an int8 layer."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    @classmethod
    def from_observed(cls, observed_module: ObservedGated) -> QuantizedGated:
        observed_module.linear.activation_post_process = observed_module.activation_post_process
        return cls(QuantizedLinear.from_float(observed_module.linear))


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), Gated(nn.Linear(64, 16))).eval(), torch.randn(4, 32, 64)
    prepare_config = PrepareCustomConfig().set_float_to_observed_mapping(Gated, ObservedGated)
    convert_config = ConvertCustomConfig().set_observed_to_quantized_mapping(ObservedGated, QuantizedGated)
    mapping = QConfigMapping().set_global(default_qconfig)
    prepared = prepare_fx(model, mapping, (data[0],), prepare_custom_config=prepare_config)
    with torch.no_grad():
        for x in data:
            prepared(x)
    return model, convert_fx(prepared, convert_custom_config=convert_config), (data[0],)


if __name__ == "__main__":
    float_model, quantized, inputs = main()
    print(f"largest difference: {(quantized(*inputs) - float_model(*inputs)).abs().max():.4f}")
