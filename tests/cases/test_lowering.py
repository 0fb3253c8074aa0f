"""What int8 operators compute: transposed weights, padding, joined ranges, and floats in between."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.ConvTranspose2d(3, 4, 3, stride=2), nn.ConvTranspose1d(4, 3, 3)

    def forward(self, x):
        return self.second(self.first(x).flatten(2))


def test_transposed_convolutions_whose_channels_differ(case):
    found = case(Up(), torch.randn(2, 3, 6, 6))
    assert found.units == ["conv_transpose", "flatten", "conv_transpose"]
    assert found.sqnr() >= 30
    qparams = found.int8.quant_plan.qparams
    scales = [len(qparams[u.roles["weight"]].scale) for u in found.prepared.plan.units if "weight" in u.roles]
    assert scales == [4, 3]


def test_padding_by_name(case):
    """An even kernel has one more on the right and at the bottom; what is padded is 0.0."""
    model = nn.Sequential(
        nn.Conv2d(4, 4, 4, padding="same"),
        nn.Conv2d(4, 4, 3, dilation=2, padding="same"),
        nn.Conv2d(4, 4, 3, padding="valid", groups=4),
    )
    x = torch.randn(2, 4, 9, 9)
    with warnings.catch_warnings():  # torch's own, of its float convolution with an even kernel
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        found = case(model, x)
    assert found.got.shape == found.expected.shape
    assert found.sqnr() >= 28


class Joined(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.small, self.large, self.turned = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), turned
        with torch.no_grad():
            self.large.weight.mul_(100)
            self.large.bias.mul_(100)

    def forward(self, x):
        parts = [self.small(x), self.large(x)]
        return torch.cat(parts[::-1] if self.turned else parts, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_join_holds_the_larger_range(case, turned):
    with pytest.warns(fxq.FxQuantWarning, match="joined"):  # as it was asked to round what it returns
        found = case(Joined(turned), torch.randn(2, 3, 8, 8))
    assert float(found.got.abs().max()) >= 0.98 * float(found.expected.abs().max())
    assert found.sqnr() >= 28
    assert found.sqnr(lambda y: y[:, :4] if turned else y[:, 4:]) >= 28


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 3)
        self.bias = nn.Parameter(torch.randn(8) * 0.1)

    def forward(self, x):
        h = F.gelu(self.norm(self.first(x))) + self.bias
        weights = F.softmin(h @ h.transpose(1, 2) / 8**0.5, -1)
        return self.last((weights @ h).mean(1))


def test_operators_without_integer_form_run_in_float_and_are_named(case):
    found = case(Between(), torch.randn(4, 6, 8))
    assert found.sqnr() >= 20
    unwanted = {row.operator for row in found.prepared.coverage().float_rows if not row.excused}
    assert unwanted == {"RMSNorm", "softmin"}
    assert all(row.reason for row in found.prepared.coverage().float_rows)


def test_layers_that_follow_each_other_exchange_integers(case):
    layers = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    found = case(
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)), torch.rand(2, 3, 9, 9)
    )
    kinds = [type(module).__name__ for module in found.int8.modules()]
    assert kinds.count("Quantize") == kinds.count("Dequantize") == 1
