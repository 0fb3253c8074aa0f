"""Parts of graphs as functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx import symbolic_trace

from fxquant.runtime.generated import function_of


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        size = x.size(0)
        y = self.inner(x).reshape(size, 3)
        return {"sum": y + x[:, :3], "all": (y, x)}


def test_a_part_of_a_graph_runs_as_the_graph_does():
    torch.manual_seed(0)
    model = symbolic_trace(Model())
    x, size, inner, y, *_ = model.graph.nodes
    part = function_of([inner, y], [x], (y, inner), {size: 2})
    given = torch.randn(2, 4)
    result, same = part(model, given)
    assert torch.equal(result, model.inner(given))
    assert torch.equal(same, result)


def test_results_keep_their_structure():
    model = symbolic_trace(Model())
    x, *body, output = model.graph.nodes
    whole = function_of(body, [x], output.args[0], {})
    given = torch.randn(2, 4)
    found, wanted = whole(model, given), model(given)
    assert found.keys() == wanted.keys()
    assert torch.equal(found["sum"], wanted["sum"])
    assert found["all"][1] is given


def test_the_module_is_asked_for_its_layers_in_each_call():
    model = symbolic_trace(Model())
    x, size, inner, *_ = model.graph.nodes
    part = function_of([inner], [x], inner, {size: 2})
    model.inner = nn.Linear(4, 7)
    assert part(model, torch.randn(2, 4)).shape == (2, 7)
