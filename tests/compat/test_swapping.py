"""``quantize_dynamic`` of models that torch.fx cannot trace: their layers are quantized one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.compat.qconfig import default_dynamic_qconfig
from fxquant.compat.quantize import quantize_dynamic


class Untraceable(nn.Module):
    """Every layer that is quantized so, behind a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.bag = nn.Embedding(10, 8), nn.EmbeddingBag(10, 8, mode="sum")
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.first, self.block = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.again = self.first

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        y = self.first(self.table(indices.view(2, -1)))
        if y.sum() > 1e9:
            return y
        state = torch.ones(1, 2, 8)
        y, _ = self.lstm(self.again(y), (state, state))
        return self.block(y) + self.bag(indices, offsets).sum()


def untouched(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.quint4x2])
def test_layers_are_swapped_in_a_copy(dtype):
    model = Untraceable().eval()
    arguments, before = (torch.arange(10).repeat(2)[:12], torch.tensor([0, 5])), untouched(model)
    int8 = quantize_dynamic(model, dtype=dtype)
    error = (int8(*arguments) - model(*arguments)).abs().max() / model(*arguments).abs().max()
    assert 0 < error < (0.2 if dtype is torch.quint4x2 else 0.05)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.first) is nn.Linear
    assert int8.first is int8.again
    swapped = {name for name, module in int8.named_modules() if type(module).__module__.startswith("fxquant.")}
    assert swapped >= ({"first", "lstm", "block.0"} if dtype is torch.qint8 else {"table", "bag"})
    assert torch.equal(copy.deepcopy(int8)(*arguments), int8(*arguments))


def test_names_and_classes_choose_layers():
    model = Untraceable().eval()
    one = quantize_dynamic(model, {"block": default_dynamic_qconfig})
    assert isinstance(one.block[0], fxq.nn.QuantizedDynamicLinear)
    assert type(one.first) is nn.Linear
    others = quantize_dynamic(model, {nn.Linear: default_dynamic_qconfig, "block.0": None})
    assert type(others.block[0]) is nn.Linear
    assert isinstance(others.first, fxq.nn.QuantizedDynamicLinear)


def test_encoders_call_their_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x, mask = torch.randn(2, 4, 16), torch.tensor([[False] * 4, [False, False, True, True]])
    for model in (layer.eval(), nn.TransformerEncoder(layer, 2).eval()):
        int8 = quantize_dynamic(model)
        assert any(isinstance(module, fxq.nn.QuantizedDynamicLinear) for module in int8.modules())
        for given in ({}, {"src_key_padding_mask": mask}):
            kept = ~mask if given else slice(None)
            expected = model(x, **given)  # with gradients the float model calls its layers, too
            with torch.no_grad():
                assert (int8(x, **given)[kept] - expected[kept]).abs().max() < 0.05
