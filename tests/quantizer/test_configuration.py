"""What a user asks for, and what is refused of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning, InputError, SpecError

X = torch.rand(2, 3)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()


def test_patterns_that_are_none():
    with pytest.raises(InputError) as caught:
        fxq.prepare(model(), X, patterns=["linear"])
    assert str(caught.value) == (
        "patterns holds something that is no Pattern\n  got:      'linear'\n  expected: Pattern objects"
    )


def test_an_input_observer_without_a_grid():
    with pytest.raises(SpecError) as caught:
        fxq.Quantizer(model(), X, input_observer=fxq.NoopObserver)
    assert str(caught.value).startswith("input_observer chooses no qparams\n  got:      <class")


def test_an_input_observer_that_measures_at_run_time():
    with pytest.raises(SpecError, match="input_observer chooses no qparams"):
        fxq.Quantizer(model(), X, input_observer=fxq.MinMaxObserver.with_args(is_dynamic=True))


def test_an_input_observer_that_is_an_instance():
    with pytest.raises(SpecError) as caught:
        fxq.Quantizer(model(), X, input_observer=fxq.MinMaxObserver())
    assert "is no constructor" in str(caught.value)


def test_one_leaf_module_needs_no_tuple():
    for leaf in ("1", nn.Linear):
        net = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Linear(4, 2)).eval()
        prepared = fxq.prepare(net, torch.rand(1, 3, 4), leaf_modules=leaf)
        assert [row.node for row in prepared.coverage().float_rows] == ["_1"]


def test_default_rules_that_match_nothing_are_not_reported():
    """Warnings are errors here. A rule of the user's own is reported, also beside the default ones."""
    fxq.prepare(model(), X)
    mapping = fxq.get_default_qconfig_mapping()
    fxq.prepare(model(), X, mapping)
    with pytest.warns(FxQuantWarning, match=r"set_object_type\(Embedding\)"):
        fxq.prepare(model(), X, mapping.set_object_type(nn.Embedding, None))
