"""What is said of a node that fails."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.graph.failures import does_not_run, expectation, first_line, not_running


def node_of(module: nn.Module):
    return next(iter(torch.fx.symbolic_trace(module).graph.nodes))


def test_a_list_of_overloads_is_not_announced():
    with pytest.raises(TypeError) as caught:
        torch.conv2d(None, None)  # type: ignore[arg-type]
    wrong = "conv2d() received an invalid combination of arguments - got (NoneType, NoneType)"
    assert first_line(caught.value) == wrong
    assert first_line(ValueError()) == "ValueError"


def test_what_a_layer_takes():
    assert expectation(nn.Conv2d(3, 4, 1)) == "Conv2d with 3 input channels"
    assert expectation(nn.Linear(3, 4)) == "Linear with 3 input features (the last dimension)"
    assert expectation(nn.ReLU()) is None
    assert expectation(None) is None


def test_an_example_that_does_not_run():
    gm = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2)))
    node = list(gm.graph.nodes)[1]
    assert str(not_running(node, gm.get_submodule("0"), ValueError("no"), (1,), {})) == (
        "the example inputs do not run through the model: no\n"
        f"  at:       {node.format_node()}\n"
        "  got:      (1)\n"
        "  expected: Linear with 3 input features (the last dimension)\n"
        "  hint:     example_inputs (--input of a command) must be inputs that the model itself can run on"
    )


def test_what_does_not_run_is_named():
    node = node_of(nn.ReLU())
    assert str(does_not_run(ValueError("no"), node, (torch.ones(2),), {"y": 1})) == (
        "this batch does not run through the model: no\n"
        f"  at:       {node.format_node()}\n"
        "  got:      (float32[2], y=1)\n"
        "  hint:     batches must be inputs that the model itself can run on"
    )
