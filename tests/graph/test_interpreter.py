"""Runs on bound inputs: what parameters get, what comes out, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

from fxquant.errors import InputError
from fxquant.graph.interpreter import BoundInterpreter


class Many(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return {"sum": [x + y, (y,)], "x": x}


def test_results_are_the_containers_of_python_and_values_are_kept_where_asked() -> None:
    gm = symbolic_trace(Many())
    x, y = torch.ones(2), torch.full((2,), 2.0)
    for keep in (False, True):
        run = BoundInterpreter(gm, {"x": x, "y": y}, keep_values=keep)
        found = run.run()
        assert (type(found), type(found["sum"]), type(found["sum"][1])) == (dict, list, tuple)
        assert found["sum"][0].tolist() == [3, 3]
        assert found["x"] is x
        assert ({node.name for node in run.env} >= {"x", "y", "add"}) is keep


def test_a_node_that_fails_is_named_with_what_it_was_given() -> None:
    gm = symbolic_trace(Many())
    with pytest.raises(InputError) as caught:
        BoundInterpreter(gm, {"x": torch.ones(2), "y": torch.ones(3)}).run()
    assert "add" in str(caught.value)
    assert "[3]" in str(caught.value)
