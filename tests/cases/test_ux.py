"""What users see: rules that match nothing, the guilty layer, their own model untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning

LOST, KEPT = 5.0, 30.0
"""dB of SQNR of a layer whose weight is lost, and of one that 8 bits keep."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.fc(x)))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def in_order(mapping: fxq.QConfigMapping) -> fxq.QConfigMapping:
    everything = fxq.get_default_qconfig()
    return mapping.set_global(everything).set_module_name_regex(r"blocks\..*\.norm", None)


def reversed_order(mapping: fxq.QConfigMapping) -> fxq.QConfigMapping:
    return mapping.set_module_name_regex(r"blocks\..*\.norm", None).set_global(fxq.get_default_qconfig())


@pytest.mark.parametrize("declare", [in_order, reversed_order])
def test_a_rule_that_matches_nothing_is_named_and_the_others_hold(declare):
    rules = declare(fxq.QConfigMapping()).set_module_name("blocks.0.fcc", None)
    with pytest.warns(FxQuantWarning) as caught:
        prepared = fxq.prepare(Blocks().eval(), torch.randn(4, 8), rules)
    assert [str(warning.message) for warning in caught] == [
        "a rule of the configuration matches nothing in the model\n"
        "  got:      set_module_name('blocks.0.fcc')\n"
        "  hint:     did you mean 'blocks.0.fc'?"
    ]
    fates = {row.module: row.fate for row in prepared.coverage() if row.operator in ("linear", "linear_act", "Linear")}
    assert fates == {
        **{"blocks.0.fc": "int8", "blocks.0.norm": "float"},
        **{"blocks.1.fc": "int8", "blocks.1.norm": "float"},
    }


def test_the_layer_that_hurts_is_found():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    with torch.no_grad():
        model[0].weight[0].zero_()
        model[0].bias[0] = 0.0  # feature 0 is always 0 …
        model[1].weight[3, 0] = 1000.0  # … so this weight changes nothing but the grid of the others
    per_tensor = fxq.QConfig(
        fxq.get_default_qconfig().activation, fxq.MinMaxObserver.with_args(scheme=fxq.QScheme(symmetric=True))
    )
    x = torch.randn(64, 8)
    prepared = fxq.prepare(model, x, per_tensor).calibrate([x], progress=False)
    parity = fxq.convert(prepared, check=x).parity
    noise = {row.unit: row.noise for row in parity}
    worst = min(noise, key=lambda unit: noise[unit].isolated)
    assert worst == "_1"
    assert noise[worst].isolated <= LOST
    assert noise[worst].part == "weight"
    assert all(one.isolated >= KEPT for unit, one in noise.items() if unit != worst)
    assert noise["_2"].accumulated <= LOST + 5 < noise["_2"].isolated


def test_the_users_model_is_as_it_was_at_every_stage():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    calls: list[int] = []
    model[0].register_forward_hook(lambda module, args, out: calls.append(1))
    x = torch.randn(2, 3, 8, 8)
    state, hooks = copy.deepcopy(model.state_dict()), dict(model[0]._forward_hooks)
    expected = model(x)

    def untouched() -> bool:
        same = all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        return same and model[0]._forward_hooks == hooks and not model.training and torch.equal(model(x), expected)

    prepared = fxq.prepare(model, x)
    assert untouched()
    prepared.calibrate([x], progress=False)
    assert untouched()
    first, second = fxq.convert(prepared), fxq.convert(prepared)
    assert untouched()
    assert torch.equal(first(x), second(x))
    assert untouched()
