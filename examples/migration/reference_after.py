"""The reference model, float operators between quantize and dequantize: what a compiler of one's own reads.

The pattern is that of ``convert_to_reference_fx`` in PyTorch's documentation, and of TensorRT's path through FX
(pytorch/TensorRT, fx/test/quant).
"""

import torch
from torch import nn

from fxquant.compat.observer import HistogramObserver, default_weight_observer
from fxquant.compat.quantization import QConfig, QConfigMapping
from fxquant.compat.quantize_fx import convert_to_reference_fx, prepare_fx


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), nn.ReLU())
    return nn.Sequential(body, nn.Flatten(), nn.Linear(32 * 36, 10)).eval()


def main() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    model, data = network(), [torch.randn(4, 3, 16, 16) for _ in range(4)]
    activation = HistogramObserver.with_args(qscheme=torch.per_tensor_affine, dtype=torch.quint8)
    mapping = QConfigMapping().set_global(QConfig(activation=activation, weight=default_weight_observer))
    prepared = prepare_fx(model, mapping, (data[0],))
    with torch.no_grad():
        for x in data:
            prepared(x)
    return model, convert_to_reference_fx(prepared), (data[0],)


if __name__ == "__main__":
    float_model, reference, inputs = main()
    print(f"largest difference: {(reference(*inputs) - float_model(*inputs)).abs().max():.4f}")
