"""What is known to stay float says why."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.graph.decompositions.composites import MANY
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.floats import (
    EXPONENTIALS,
    OWN_STATISTICS,
    QUOTIENT,
    STAYS_FLOAT,
    STEEP,
)


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        (lambda x: torch.einsum("bihw,bjhw,bkhw->bijk", x, x, x), MANY),
        (lambda x: torch.addcdiv(x, x, x.abs() + 1), QUOTIENT),
        (lambda x: F.layer_norm(x, (6,)), OWN_STATISTICS),
        (nn.GroupNorm(2, 4), OWN_STATISTICS),
        (lambda x: torch.layer_norm(x, (6,)), OWN_STATISTICS),
        (lambda x: F.group_norm(x, 2), OWN_STATISTICS),
        (lambda x: torch.group_norm(x, 2), OWN_STATISTICS),
        (F.instance_norm, OWN_STATISTICS),
        (nn.RMSNorm(6), OWN_STATISTICS),
        (lambda x: F.rms_norm(x, (6,)), OWN_STATISTICS),
        (lambda x: torch.rms_norm(x, (6,)), OWN_STATISTICS),
        (nn.LocalResponseNorm(2), OWN_STATISTICS),
        (lambda x: F.local_response_norm(x, 2), OWN_STATISTICS),
        (F.normalize, OWN_STATISTICS),
        (lambda x: x.log_softmax(1), EXPONENTIALS),
        (lambda x: F.log_softmax(x, 1), EXPONENTIALS),
        (nn.LogSoftmax(1), EXPONENTIALS),
        (lambda x: x / (x.abs() + 1), QUOTIENT),
        (lambda x: x.exp(), STEEP),
    ],
)
def test_the_reason_is_told(plan_behind_conv, reader, reason):
    plan = plan_behind_conv(reader)
    assert plan.units[0].pattern == "conv"
    assert [(r.reason, r.pattern) for r in plan.refusals if not r.excused] == [(reason, "")]


def test_values_go_through_floats_and_come_back(forms_of):
    """linear, norm, GELU, attention, mean, linear: quantized where it pays, and every form agrees."""

    def body(m, x):
        h = F.gelu(m.norm(m.first(x))) + m.first(x)
        weights = torch.softmax(h @ h.transpose(1, 2) / 8**0.5, -1)
        return m.last((weights @ h).mean(1))

    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    forms = forms_of(body, x=x, first=nn.Linear(8, 8), norm=nn.LayerNorm(8), last=nn.Linear(8, 3))
    assert forms.units == [
        *("linear", "layer_norm", "gelu", "linear", "add", "transpose", "matmul_scaled", "attention_weights", "matmul"),
        *("mean", "linear"),
    ]
    assert not forms.prepared.coverage().float_rows
    assert forms.sqnr > 25


OF_SOME_KINDS = ("rescale", "div_number", "pow_number")


def test_no_reason_contradicts_a_pattern_of_one_operator():
    """``torch.div`` and ``torch.pow`` have forms for numbers only."""
    patterns = {t for p in DEFAULT_PATTERNS if p.root.size == 1 for t in p.root.targets if p.name not in OF_SOME_KINDS}
    assert not patterns & set(STAYS_FLOAT)
