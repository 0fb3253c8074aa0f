"""Which softmax and which layer norm are units, and with which grid."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.patterns import norm
from fxquant.patterns.norm import softmax_arguments


class Net(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.a, self.b = function, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.function(self.a(x)))


def pattern_of(function) -> str:
    """What becomes of the first softmax between two layers."""
    row = next(row for row in fxq.prepare(Net(function).eval(), torch.randn(4, 4)).coverage() if "softmax" in row.node)
    return row.operator if row.fate == "int8" else row.reason


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        (lambda x: F.softmax(x, -1), "softmax"),
        (lambda x: x.softmax(dim=0), "softmax"),
        (lambda x: torch._safe_softmax(x, -1), "softmax"),
        (lambda x: torch.softmax(x, 1) @ x, "attention_weights"),
        (
            lambda x: F.dropout(torch.softmax(x, 1), training=False).unsqueeze(0).transpose(1, 2) @ x,
            "attention_weights",
        ),
        (lambda x: torch.bmm(torch.softmax(x, 1)[None], x[None]).squeeze(0), "attention_weights"),
        (lambda x: torch.softmax(x, 1, dtype=torch.float32), "dtype=torch.float32: it also changes the dtype"),
    ],
)
def test_patterns(function, pattern):
    assert pattern_of(function) == pattern


def test_arguments():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for node in (
        graph.call_function(F.softmax, (x, 1), {"dtype": torch.half}),
        graph.call_function(F.softmax, (x, 1, 3, torch.half)),
        graph.call_function(torch._safe_softmax, (x,), {"dim": 1, "dtype": torch.half}),
        graph.call_function(torch._safe_softmax, (x, 1, torch.half)),
    ):
        assert softmax_arguments(node) == (1, torch.half)


def test_rows_that_are_too_long(monkeypatch):
    monkeypatch.setattr(norm, "MOST_COLUMNS", 3)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)).eval()
    rows = [row for row in fxq.prepare(model, torch.randn(4, 4)).coverage() if row.fate == "float"]
    assert [row.reason for row in rows] == ["4 columns: the sum of their squares may not fit an int64"]
