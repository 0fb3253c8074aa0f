"""What a whole model packs: each weight once, whoever holds it, and again in copies and after loading."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.kernels.library import available_isas
from fxquant.nn.weight import WeightedModule

needs_native = pytest.mark.skipif(not available_isas(), reason="no kernel packs weights")


class Levels(nn.Module):
    """One head for three levels, as in detectors, and two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight

    def forward(self, x):
        levels = [self.head(level).mean((2, 3)) for level in (x, 2 * x, x[..., ::2])]
        return self.two(torch.relu(self.one(levels[0] + levels[1]))) + self.one(levels[2])


def packed_at(model: nn.Module) -> dict[str, int]:
    """Where the packed weight of each layer lies."""
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, WeightedModule)]
    return {name: each.packed().unpacked.__self__.values.data_ptr() for name, each in layers}


@needs_native
@pytest.mark.parametrize("form", ["converted", "loaded", "copied", "pickled"])
def test_layers_of_one_weight_keep_it_once(form):
    torch.manual_seed(0)
    x = torch.rand(2, 3, 6, 6)
    quantizer = fxq.calibrate(fxq.prepare(Levels().eval(), x), [x], progress=False)
    model = fxq.convert(quantizer)
    expected = model(x)
    if form == "loaded":
        state, model = model.state_dict(), fxq.convert(fxq.prepare(Levels().eval(), x), allow_uncalibrated=True)
        model.load_state_dict(state)
    elif form == "copied":
        model = copy.deepcopy(model)
    elif form == "pickled":
        model = pickle.loads(pickle.dumps(model))
    places = packed_at(model)
    assert len(places) == 6
    assert len(set(places.values())) == 2
    for _ in range(3):
        assert torch.equal(model(x), expected)
    name = next(name for name in places if name.startswith("head"))
    layer = model.get_submodule(name)
    layer.weight.add_(1)  # reaches this layer alone
    layer.invalidate()
    model(x)
    assert len(set(packed_at(model).values())) == 3
