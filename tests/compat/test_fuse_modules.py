"""Modules that are fused by name compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.compat.fuse_modules import fuse_modules, fuse_modules_qat
from fxquant.errors import InputError, NotOffered, UnknownNameError

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2), nn.ReLU())
    made[1].running_mean.uniform_(-0.5, 0.5)
    made[1].running_var.uniform_(0.5, 2.0)
    return made.eval()


def test_batch_norms_are_folded():
    model = net()
    fused = fuse_modules(model, [["0", "1", "2"], ["4", "5"]])
    assert [type(module) for module in fused[:3]] == [nn.Sequential, nn.Identity, nn.Identity]
    assert [type(module) for module in fused[0]] == [nn.Conv2d, nn.ReLU]
    assert not any(module.training for module in fused.modules())
    torch.testing.assert_close(fused(X), model(X))
    assert isinstance(model[0], nn.Conv2d)
    assert fuse_modules(model, ["0", "1"], inplace=True) is model
    assert isinstance(model[1], nn.Identity)


def test_batch_norms_train_on():
    model = net().train()
    fused = fuse_modules_qat(model, ["0", "1", "2"])
    assert [type(module) for module in fused[0]] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    torch.testing.assert_close(fused(X), model(X))


def test_what_is_refused():
    with pytest.raises(NotOffered, match="not fused"):
        fuse_modules(net(), ["2", "3"])
    with pytest.raises(NotOffered, match="functions of one's own"):
        fuse_modules(net(), ["0", "1"], fuser_func=print)
    with pytest.raises(UnknownNameError, match="no submodule"):
        fuse_modules(net(), ["0", "9"])
    with pytest.raises(InputError, match="does not train"):
        fuse_modules(net().train(), ["0", "1"])
