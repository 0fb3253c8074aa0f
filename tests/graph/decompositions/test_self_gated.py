"""SiLU and hardswish as gate and product: the same values, for back ends that ask for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.graph.decompositions.self_gated import SELF_GATED

FEW_ULPS = 4 * 2.0**-23
"""Relative: the parts round once more than the function."""


def layers(function: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), function, nn.Conv2d(4, 2, 1)).eval()


@pytest.mark.parametrize(("function", "gate"), [(nn.SiLU, "sigmoid"), (nn.Hardswish, "hardsigmoid")])
@pytest.mark.parametrize("inplace", [False, True])
def test_the_parts_give_the_values_of_the_function(function, gate, inplace):
    model, x = layers(function(inplace=inplace)), torch.randn(2, 3, 5, 5)
    prepared = fxq.prepare(model, x, backend="onnxruntime")
    assert [unit.pattern for unit in prepared.plan.units] == ["conv", gate, "mul", "conv"]
    torch.testing.assert_close(prepared.graph_module(x), model(x), rtol=FEW_ULPS, atol=FEW_ULPS)


@pytest.mark.parametrize("backend", ["cpu", "openvino", "tensorrt", "reference"])
def test_other_back_ends_keep_the_function(backend):
    x = torch.randn(2, 3, 5, 5)
    prepared = fxq.prepare(layers(nn.SiLU()), x, backend=backend)
    assert all(node.target is not torch.sigmoid for node in prepared.graph_module.graph.nodes)


def test_a_rule_for_the_function_decides_for_its_parts():
    config = fxq.get_default_qconfig_mapping().set_object_type(nn.SiLU, None)
    x = torch.randn(2, 3, 5, 5)
    prepared = fxq.prepare(layers(nn.SiLU()), x, config, backend="onnxruntime")
    assert [unit.pattern for unit in prepared.plan.units] == ["conv", "conv"]


def test_what_no_layer_reads_stays_float():
    x = torch.randn(2, 3, 5, 5)
    prepared = fxq.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU()).eval(), x, backend="onnxruntime")
    assert [unit.pattern for unit in prepared.plan.units] == ["conv"]


def test_the_table_names_functions_by_their_canonical_spelling():
    assert {function.__name__ for function in SELF_GATED} == {"silu", "hardswish"}
