"""Batch norms: when they may be folded into what stands before them, and exactly how."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.passes.fold_conv_bn import fold

EXACT = 1e-5
"""Folding computes in float64 and rounds to float32 once."""


def trained(norm: nn.Module) -> nn.Module:
    norm.running_mean.uniform_(-0.5, 0.5)
    norm.running_var.uniform_(0.5, 2.0)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -0.5, 0.5)
    return norm


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), trained(nn.BatchNorm2d(3))

    def forward(self, x):
        return self.norm(self.conv(self.conv(x)))


def test_a_shared_convolution_is_folded_where_the_batch_norm_is(case):
    found = case(Twice(), torch.randn(2, 3, 8, 8))
    assert found.units == ["conv", "conv_bn"]
    assert found.sqnr() >= 18


class SecondReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), trained(nn.BatchNorm2d(4))

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y, y.amax()


def test_a_value_that_something_else_reads_is_not_folded_away(case):
    found = case(SecondReader(), torch.randn(2, 3, 8, 8))
    assert found.units == ["conv", "bn", "add", "amax"]
    assert found.sqnr(lambda value: value[0]) >= 30
    assert abs(float(found.expected[1] - found.got[1])) < 0.02 * float(found.expected[1])


def test_a_batch_norm_without_affine_and_a_convolution_without_bias():
    conv, norm = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.01, affine=False).eval()
    with torch.no_grad():
        conv.weight.copy_(torch.diag(torch.tensor([2.0, 4.0])).reshape(2, 2, 1, 1))
        norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
        norm.running_var.copy_(torch.tensor([3.99, 0.24]))
    folded = fold(conv, norm)
    torch.testing.assert_close(folded.weight.flatten(), torch.tensor([1.0, 0.0, 0.0, 8.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(folded.bias, torch.tensor([-0.5, 2.0]), atol=1e-6, rtol=0)


def test_a_batch_norm_of_the_batch_itself_is_never_folded(case):
    norm = nn.BatchNorm2d(4, affine=False, track_running_stats=False)
    x = torch.randn(4, 3, 8, 8)
    found = case(nn.Sequential(nn.Conv2d(3, 4, 3), norm), x)
    assert found.units == ["conv"]
    with torch.no_grad():
        for batch in (x, x * 0.5 + 0.5):
            y = found.int8(batch)
            assert float(y.mean((0, 2, 3)).abs().max()) < 0.05
            assert float((y.std((0, 2, 3)) - 1).abs().max()) < 0.05


def test_groups_of_a_transposed_convolution():
    """Output channel o of group g is channel g * (out / g) + o of the batch norm."""
    up, norm = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), trained(nn.BatchNorm2d(6)).eval()
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = up.weight.reshape(2, 2, 3, 3, 3) * factor.reshape(2, 1, 3, 1, 1)
    folded = fold(up, norm, axis=1)
    torch.testing.assert_close(folded.weight, weight.reshape(4, 3, 3, 3), atol=EXACT, rtol=0)
    torch.testing.assert_close(folded.bias, (up.bias - norm.running_mean) * factor + norm.bias, atol=EXACT, rtol=0)
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(folded(x), norm(up(x)), atol=EXACT, rtol=0)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.keep = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Identity(), nn.Dropout(0.5))

    def forward(self, x):
        return self.keep(self.first(x))


def test_what_is_left_out_keeps_its_layers(case):
    model = Kept()
    rules = fxq.get_default_qconfig_mapping().set_module_name("keep", None)
    found = case(model, torch.randn(2, 3, 6, 6), qconfig=rules)
    names = sorted(name for name in model.state_dict() if name.startswith("keep."))
    assert sorted(name for name in found.int8.state_dict() if name.startswith("keep.")) == names
    assert type(found.int8.keep.get_submodule("1")) is nn.BatchNorm2d
    assert found.units == ["conv"]
