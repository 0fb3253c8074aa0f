"""Units with a weight, split into those that a method takes and those that it leaves."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.graph.query import called_module, nodes_by_name
from fxquant.measure.parity import plan_of
from fxquant.training.unit_samples import UnitNodes
from fxquant.training.weighted_units import Left, layer_node, refused_kind, split_by_refusal


def simulation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)).eval()
    x = torch.randn(2, 2, 6, 6)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    return fxq.convert(prepared, to="fake_quant")


def test_units_with_a_weight_are_taken_or_left_with_the_reason():
    simulated = simulation()
    plan, asked = plan_of(simulated), []

    def refusal(layer, scheme, own):
        asked.append(own)
        return "it is linear" if layer.weight.dim() == 2 else ""

    taken, left = split_by_refusal(simulated, plan, {"_4": "known"}, refusal)
    assert [(unit.root, called_module(node).weight.dim()) for unit, node in taken] == [("_1", 4)]
    assert left == [Left("_4", "it is linear")]
    assert asked == [None, "known"]  # the pool and flatten have no weight


def test_the_node_of_the_layer_is_one_of_the_unit():
    simulated = simulation()
    nodes = nodes_by_name(simulated)
    conv = next(unit for unit in plan_of(simulated).units if unit.root == "_1")
    found = UnitNodes.of(conv, nodes)
    assert found.layer is layer_node(conv, nodes)
    assert found.layer in found.members
    assert found.module.weight.shape == (4, 2, 3, 3)


def test_kinds_without_one_matrix():
    assert refused_kind(nn.Embedding(3, 2)) == "a table is read, not multiplied"
    assert refused_kind(nn.EmbeddingBag(3, 2)) == "a table is read, not multiplied"
    assert "several matrices" in refused_kind(nn.LSTM(2, 2))
    assert refused_kind(nn.Linear(2, 2)) == ""
