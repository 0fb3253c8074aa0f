"""Small networks of torchvision's kinds: what may stay float in each, and how near int8 is to float and simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.maxvit import MaxVit
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
from torchvision.models.vision_transformer import VisionTransformer

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.measure.parity import measure_parity
from fxquant.samples.networks import make_meaningful, take_statistics

SIDE = 32
"""Pixels; windows and patches of 4, so that several of them fit."""
AGREEMENT = 0.5
"""dB that int8 may be away from its simulation: values that round the other way."""

PRODUCTS = frozenset({"matmul", "einsum", "scaled_dot_product_attention"})
"""Of two values that depend on the input."""
SOFTMAX = frozenset({"softmax", "dropout", "mul"})
MASKS = frozenset({"pad", "new_zeros", "full_like", "reshape", "masked_fill"})
"""Of windows that wrap around, with their numbers; padding of nothing between floats."""
NORMS = frozenset({"LayerNorm", "layer_norm"})
COSINE = frozenset({"normalize", "clamp", "exp"})
"""Swin V2 compares by angles, with a learned temperature."""


@dataclass(frozen=True)
class Kind:
    build: Callable[[], nn.Module]
    floats: frozenset[str]
    """Operators that may stay float, beside those that only such operators read."""
    int8_macs: float
    """Share of the multiply-accumulates that must become int8."""
    decibels: float
    """SQNR that int8 must reach against float."""


def swin(**arguments: object) -> SwinTransformer:
    sizes = {"patch_size": [2, 2], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
    return SwinTransformer(**sizes, num_classes=100, **arguments)


KINDS = {
    "vit": Kind(
        lambda: VisionTransformer(SIDE, 8, 2, 2, 64, 128, num_classes=100), NORMS | PRODUCTS | SOFTMAX, 0.99, 28
    ),
    "swin": Kind(swin, NORMS | PRODUCTS | SOFTMAX | MASKS, 0.99, 33),
    "swin_v2": Kind(
        lambda: swin(block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2),
        NORMS | PRODUCTS | SOFTMAX | MASKS | COSINE,
        0.99,
        26,
    ),
    "maxvit": Kind(
        lambda: MaxVit((SIDE, SIDE), 16, 4, [16, 32], [1, 1], 16, 0.0, num_classes=100),
        NORMS | PRODUCTS | SOFTMAX,
        0.90,
        25,
    ),
    "convnext": Kind(
        lambda: ConvNeXt([CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 2)], num_classes=100), NORMS, 0.99, 28
    ),
    "densenet": Kind(lambda: DenseNet(8, (3, 3), 16, num_classes=100), frozenset(), 0.99, 27),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "swin_v2" else name for name in KINDS],  # swin is like it
)
def test_a_network_of_each_kind(name: str) -> None:
    kind = KINDS[name]
    torch.manual_seed(0)
    x, model = torch.randn(16, 3, SIDE, SIDE), kind.build().eval()
    make_meaningful(model)
    take_statistics(model, [x])
    prepared = fxq.calibrate(fxq.prepare(model, x[:1]), [x], progress=False)
    coverage = prepared.coverage()
    assert {row.operator for row in coverage.float_rows if not row.excused} <= kind.floats
    assert coverage.int8_macs >= kind.int8_macs

    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    with torch.no_grad():
        expected, got, simulation = model(x), int8(x), simulated(x)
    assert sqnr(expected, got) >= kind.decibels
    assert abs(sqnr(expected, got) - sqnr(expected, simulation)) < AGREEMENT
    assert measure_parity(int8, simulated, (x[:1],)).breaches == ()
