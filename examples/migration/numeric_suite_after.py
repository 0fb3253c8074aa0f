"""The numeric suite: weights and activations of the float and of the quantized model, layer by layer, in decibels.

The pattern is that of "PyTorch FX Numeric Suite Core APIs Tutorial", a tutorial of PyTorch.
"""

import copy

import torch
from torch import nn

from fxquant.compat.numeric_suite_fx import (
    OutputLogger,
    add_loggers,
    compute_sqnr,
    extend_logger_results_with_comparison,
    extract_logger_info,
    extract_weights,
)
from fxquant.compat.quantization import get_default_qconfig_mapping
from fxquant.compat.quantize_fx import convert_fx, prepare_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    model, data = network(), [torch.randn(4, 3, 16, 16) for _ in range(4)]
    prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("fbgemm"), (data[0],))
    for x in data:
        prepared(x)
    quantized = convert_fx(copy.deepcopy(prepared))

    weights = extract_weights("float", prepared, "int8", quantized)
    extend_logger_results_with_comparison(weights, "float", "int8", compute_sqnr, "sqnr")
    show("weight", weights, "int8")

    logged, quantized_logged = add_loggers("float", prepared, "int8", copy.deepcopy(quantized), OutputLogger)
    logged(data[0])
    quantized_logged(data[0])
    outputs = extract_logger_info(logged, quantized_logged, OutputLogger, "int8")
    extend_logger_results_with_comparison(outputs, "float", "int8", compute_sqnr, "sqnr")
    show("node_output", outputs, "int8")
    return model, quantized, (data[0],)


def show(kind: str, results: dict[str, dict[str, dict[str, list[dict]]]], name: str) -> None:
    for layer, found in results.items():
        for one in found[kind][name]:
            print(f"{kind:12} {layer:12} {one['fqn']!s:8} {float(one['sqnr'][0]):6.1f} dB")


if __name__ == "__main__":
    float_model, int8, inputs = main()
    print(f"largest difference: {(int8(*inputs) - float_model(*inputs)).abs().max():.4f}")
