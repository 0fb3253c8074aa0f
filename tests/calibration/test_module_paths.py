"""What a value is called in messages."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.calibration.module_paths import ModulePaths, module_paths_of
from fxquant.graph.text_table import shortened
from fxquant.plan.spec import TensorRef
from tests.outputs import rounding_outputs


def test_a_value_is_named_by_what_makes_and_reads_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    prepared = fxq.prepare(model, torch.randn(2, 4), rounding_outputs())
    refs = [TensorRef("input_1"), TensorRef("_1"), TensorRef("_3")]
    found = module_paths_of(refs, prepared.graph_module, prepared.plan)
    assert [str(place) for place in found.values()] == ["input_1 (0 input)", "_1 (0 output, 2 input)", "_3 (3 output)"]
    assert [place.short for place in found.values()] == ["0 input", "0 output", "3 output"]


def test_a_value_that_no_unit_knows_is_its_name():
    prepared = fxq.prepare(nn.Linear(4, 4).eval(), torch.randn(2, 4))
    ref = TensorRef("elsewhere")
    assert module_paths_of([ref], prepared.graph_module, prepared.plan) == {ref: ModulePaths("elsewhere", ())}
    assert ModulePaths("elsewhere", ()).short == str(ModulePaths("elsewhere", ())) == "elsewhere"


def test_the_end_of_a_path_says_most():
    assert shortened("layer1.0.conv1", 8) == "…0.conv1"
    assert shortened("conv1", 8) == "conv1"
