"""``fuse_fx``: batch norms are folded, and ReLU stands in torch's containers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.compat.backend_config import BackendConfig, BackendPatternConfig
from fxquant.compat.quantize_fx import fuse_fx

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions(dims, relu):
    intrinsic = pytest.importorskip("torch.ao.nn.intrinsic")
    layers = [getattr(nn, f"Conv{dims}d")(2, 3, 2), getattr(nn, f"BatchNorm{dims}d")(3)] + [nn.ReLU()] * relu
    model = nn.Sequential(*layers).eval()
    model[1].running_mean.uniform_(-1, 1)
    fused = fuse_fx(model)
    x = torch.randn(2, 2, *[4] * dims)
    torch.testing.assert_close(fused(x), model(x))
    wanted = getattr(intrinsic, f"ConvReLU{dims}d") if relu else getattr(nn, f"Conv{dims}d")
    assert [type(module) for module in fused.children()] == [wanted]
    assert len(list(model.children())) == len(layers)


def test_what_others_read_is_not_fused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.relu = nn.Linear(3, 3), nn.ReLU()

        def forward(self, x):
            y = self.linear(x)
            return self.relu(y) + y

    fused = fuse_fx(Twice().eval())
    assert type(fused.linear) is nn.Linear


class Layers(nn.Module):
    """A convolution, a batch norm far from the identity, ReLU, and a second of each of the first two."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.second, self.relu = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.ReLU()
        self.alias = self.conv
        for number, norm in enumerate((self.norm, self.second)):
            norm.running_mean.fill_(0.3 - 0.8 * number)
            norm.weight.data.fill_(1.7)


class SharedHead(Layers):
    def forward(self, x):
        return self.relu(self.norm(self.conv(x))) + self.relu(self.norm(self.conv(-x)))


class CalledOnItsResult(Layers):
    def forward(self, x):
        return self.relu(self.norm(self.conv(self.relu(self.norm(self.conv(x))))))


class TwoNorms(Layers):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.second(self.conv(x))


class TwoNames(Layers):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.alias(x)


class ReluOnce(Layers):
    def forward(self, x):
        return self.relu(self.conv(x)) + self.conv(x)


class NormTwice(Layers):
    def forward(self, x):
        return self.relu(self.norm(x)) + self.norm(-x)


class ReadsTheWeight(Layers):
    def forward(self, x):
        return self.norm(self.conv(x)) * self.conv.weight.sum() * self.norm.weight.sum()


@pytest.mark.parametrize(
    "kind", [SharedHead, CalledOnItsResult, TwoNorms, TwoNames, ReluOnce, NormTwice, ReadsTheWeight]
)
def test_a_layer_with_several_calls_is_not_fused(kind):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, 3, 6, 6)
    fused = fuse_fx(model)
    torch.testing.assert_close(fused(x), model(x))
    for name, module in fused.named_children():
        assert type(module) is type(getattr(model, name))


def test_what_follows_a_layer_may_be_shared():
    class Block(Layers):
        def forward(self, x):
            return self.relu(self.norm(self.other(self.relu(self.norm(self.conv(x))))))

    model, x = Block().eval(), torch.randn(2, 3, 6, 6)
    fused = fuse_fx(model)
    torch.testing.assert_close(fused(x), model(x))
    assert [type(module).__name__ for module in fused.children()] == ["ConvReLU2d"] * 2


def test_patterns_of_a_back_end():
    class Joined(nn.Sequential):
        """A container of the user's own."""

    pattern = BackendPatternConfig((nn.Linear, nn.Tanh)).set_fuser_method(lambda is_qat, a, b: Joined(a, b))
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).eval(), torch.randn(2, 3)
    fused = fuse_fx(model, backend_config=BackendConfig().set_backend_pattern_config(pattern))
    assert isinstance(fused.get_submodule("0"), Joined)
    assert torch.equal(fused(x), model(x))
    model.note = 3
    assert fuse_fx(model, {"preserved_attributes": ["note"]}).note == 3
