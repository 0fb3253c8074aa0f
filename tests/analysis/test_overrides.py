from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.analysis.overrides import addresses, keeping
from fxquant.errors import UnknownNameError
from fxquant.passes.qconfig_rules import rules_of_calls
from tests.outputs import rounding_outputs


class Net(nn.Module):
    """Two uses of one activation, two additions in one module, a weight of a function, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.act = nn.Conv1d(4, 8, 1), nn.BatchNorm1d(8), nn.ReLU()
        self.kernel, self.attn = nn.Parameter(torch.randn(8, 8)), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.a(x))).transpose(1, 2)
        y = self.act(nn.functional.linear(x, self.kernel))
        y = y + x
        y = self.attn(y, y, y)[0] + y
        return y + x


@pytest.fixture
def prepared() -> fxq.Quantizer:
    torch.manual_seed(0)
    return fxq.prepare(Net().eval(), torch.randn(2, 4, 5))


def roots(prepared: fxq.Quantizer) -> set[str]:
    return {unit.root for unit in prepared.plan.units}


def test_every_unit_can_be_kept_and_no_other_operator_is_meant(prepared: fxq.Quantizer) -> None:
    units = prepared.plan.units
    found = addresses(prepared.graph_module, units, prepared.config)
    for unit in units:
        mapping = keeping(prepared.config, [found[unit.root]], "float")
        decisions = rules_of_calls(prepared.graph_module, mapping)
        left = {node.name for node, decision in decisions.items() if decision.qconfig is None}
        assert left == set(unit.nodes)


def test_a_unit_that_is_kept_is_no_unit_and_its_parts_are_none(prepared: fxq.Quantizer) -> None:
    found = addresses(prepared.graph_module, prepared.plan.units, prepared.config)
    for root in ("act", "act_1", "add", "attn_q_proj"):
        mapping = keeping(prepared.config, [found[root]], "float")
        again = fxq.prepare(Net().eval(), torch.randn(2, 4, 5), mapping)
        nodes = next(unit.nodes for unit in prepared.plan.units if unit.root == root)
        assert not {name for unit in again.plan.units for name in unit.nodes} & set(nodes)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + x


def test_what_was_pickled_knows_where_functions_are_called() -> None:
    prepared = fxq.prepare(nn.Sequential(Block(), Block()).eval(), torch.randn(2, 4), rounding_outputs())
    again = pickle.loads(pickle.dumps(prepared))
    units = prepared.plan.units
    expected = addresses(prepared.graph_module, units, prepared.config)
    assert addresses(again.graph_module, units, again.config) == expected
    assert [address.module_name for address in expected["add_1"]] == ["1"]


def test_a_rule_of_the_strongest_kind_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    config = fxq.get_default_qconfig_mapping()
    config.set_module_name_object_type_order("", nn.Linear, 1, fxq.get_default_qconfig_mapping().global_qconfig)
    prepared = fxq.prepare(model, torch.randn(2, 4), config)
    found = addresses(prepared.graph_module, prepared.plan.units, config)
    mapping = keeping(config, [found["_2"]], "float")
    assert roots(fxq.prepare(model, torch.randn(2, 4), mapping)) == {"_1"}
    assert roots(prepared) == {"_1", "_2"}
    assert roots(fxq.prepare(model, torch.randn(2, 4), config)) == {"_1", "_2"}  # it was not changed


def test_sixteen_bits_where_the_back_end_has_them(prepared: fxq.Quantizer) -> None:
    found = addresses(prepared.graph_module, prepared.plan.units, prepared.config)
    mapping = keeping(prepared.config, [found["act_1"]], "int16")
    x = torch.randn(2, 4, 5)
    simulated = fxq.convert(
        fxq.calibrate(fxq.prepare(Net().eval(), x, mapping, backend="reference"), [x], progress=False), to="fake_quant"
    )
    qparams = simulated.quant_plan.qparams
    unit = next(unit for unit in simulated.quant_plan.units if unit.root == "act_1")
    assert [qparams[unit.roles[role]].scheme.bits for role in ("y", "weight")] == [16, 16]
    on_cpu = fxq.prepare(Net().eval(), x, mapping)
    assert "16 bit activations do not fit a byte" in " ".join(str(on_cpu).split())


def test_another_form_is_refused(prepared: fxq.Quantizer) -> None:
    with pytest.raises(UnknownNameError) as refusal:
        keeping(prepared.config, [], "float16")
    assert str(refusal.value).splitlines() == [
        "unknown kind of unit to keep",
        "  got:      'float16'",
        "  expected: float, int16",
        "  hint:     did you mean 'float'?",
    ]
