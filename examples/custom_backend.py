"""A back end of one's own: what an accelerator can run, as a table, with its patterns, bit widths and operators.

    python examples/custom_backend.py

The accelerator here has weights of 4 bits, activations of 8, and an activation unit behind its multipliers that also
computes hardswish. All else of MobileNetV3 stays float, and the printed table says by which rule. What ``build`` gives
is a model of the hardware in plain torch; a call of its driver would stand there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import fxquant as fxq
from fxquant.kernels import quantize
from fxquant.nn.weight import integer_weight
from fxquant.patterns.conv import CONV_BN, can_fold

# A pattern that the hardware runs as one operator. prepare() finds it only where a back end has a rule for it.
CONV_HARDSWISH = fxq.Pattern(
    "conv_bn_hardswish", fxq.op(F.hardswish)(CONV_BN).named("act"), inputs=("x",), weight="conv", check=can_fold
)


def eight_bits(scheme: fxq.QScheme) -> str | None:
    """A rule's answer to the qparams of an activation: None, or the reason why it cannot be run."""
    return None if scheme.bits == 8 and scheme.axis is None else "activations have 8 bits and one scale per tensor"


def four_bits(scheme: fxq.QScheme) -> str | None:
    return None if scheme.bits <= 4 and scheme.symmetric else "weights have at most 4 bits and are symmetric"


def small_kernel(layer: nn.Module) -> str | None:
    return None if max(getattr(layer, "kernel_size", (1,))) <= 5 else "kernels are at most 5 x 5"


class Multiplied(nn.Module):
    """A convolution or a linear layer on integers, and the activation behind it."""

    def __init__(self, unit: fxq.UnitView) -> None:
        super().__init__()
        self.layer = unit.modules["conv" if "conv" in unit.modules else "linear"]
        self.activation = unit.nodes["act"].target if "act" in unit.nodes else None
        self.x, self.y = unit.qparams["x"], unit.qparams.get("y")  # without y, float values are wanted
        self.weight, qparams = integer_weight(self.layer.weight.detach(), unit.qparams["weight"])
        self.scale = (self.x.scale * qparams.scale).double().reshape(-1, *[1] * (self.weight.dim() - 2))

    def forward(self, x: Tensor) -> Tensor:
        centered, weight, bias = (x.int() - self.x.zero_point).double(), self.weight.double(), self.layer.bias
        if isinstance(self.layer, nn.Linear):
            sums = F.linear(centered, weight)  # of integers, exact in double
        else:
            sums = F.conv2d(centered, weight, None, *(getattr(self.layer, name) for name in GEOMETRY))
        result = sums * self.scale + (0 if bias is None else bias.detach().reshape(self.scale.shape))
        result = (result if self.activation is None else self.activation(result)).float()
        if self.y is None:
            return result
        scheme, scale, zero_point = self.y.scheme, self.y.scale, self.y.zero_point
        return quantize(result, scale, zero_point, scheme.quant_min, scheme.quant_max, scheme.dtype)


GEOMETRY = ("stride", "padding", "dilation", "groups")
LAYERS = ("conv_bn_hardswish", "conv_bn_act", "conv_bn", "conv_act", "conv", "linear")
ACCELERATOR = fxq.Backend(
    "accelerator",
    rules=(
        fxq.LoweringRule(LAYERS, Multiplied, eight_bits, four_bits, small_kernel, float_result=True),
        fxq.LoweringRule(("flatten",), fxq.Lower.KEEP),
        fxq.LoweringRule(("dropout",), fxq.Lower.ELIDE),
    ),
)


def main() -> None:
    torch.manual_seed(0)
    fxq.register_backend(ACCELERATOR)
    model = torchvision.models.mobilenet_v3_small(weights=None).eval()
    data = [torch.randn(4, 3, 96, 96) for _ in range(2)]
    weight = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme=torch.per_channel_symmetric)
    narrow = fxq.QConfig(activation=fxq.HistogramObserver, weight=weight.with_args(bits=4))
    mapping = fxq.QConfigMapping().set_global(narrow)
    mapping.set_module_name("features.0", fxq.QConfig(fxq.HistogramObserver, weight))  # 8 bits: the table refuses
    patterns = (CONV_HARDSWISH, *fxq.DEFAULT_PATTERNS)

    prepared = fxq.prepare(model, data[0], mapping, backend="accelerator", patterns=patterns)
    fxq.calibrate(prepared, data, progress=False)
    integers = fxq.convert(prepared, check=data[0])  # every unit, against the simulation in float
    print(f"{prepared}\n\n{integers.parity}")


if __name__ == "__main__":
    main()
