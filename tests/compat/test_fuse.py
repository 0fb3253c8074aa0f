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
