"""The rows: tests/graph/operators/test_table.py and tests/cases/test_operator_fates.py hold them to torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.graph.operators.canonical import canonical_target
from fxquant.graph.operators.elementary import ELEMENTARY


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        (nn.CELU, F.celu),
        (nn.Threshold, F.threshold),
        ("hardshrink", F.hardshrink),
        (torch.negative, torch.neg),
        ("clamp_min_", torch.clamp_min),
        (torch.prelu, F.prelu),
    ],
)
def test_spellings_have_one_target(spelling, target):
    assert canonical_target(spelling) is target


def test_no_target_stands_twice():
    targets = [row.target for row in ELEMENTARY]
    assert len(targets) == len(set(targets))
