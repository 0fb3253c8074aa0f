"""A norm gets a second one: the graph and the plan, before and after."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.equalization.regions import find_regions
from fxquant.equalization.scaled_copy import scaled_copy
from fxquant.equalization.splitting import find_splits
from fxquant.plan.region import Split
from fxquant.plan.spec import TensorRef


class Block(nn.Module):
    """A norm that a layer reads, moved, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.up, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        return self.head(torch.tanh(x + self.up(x.transpose(0, 1)).transpose(0, 1)))


X = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))


def splits_of(model: nn.Module, x: Tensor = X) -> tuple[fxq.Quantizer, tuple[Split, ...]]:
    prepared = fxq.prepare(model.eval(), x)
    found = find_regions(prepared.graph_module, prepared.example_args, {}, with_data=True)
    return prepared, find_splits(prepared.graph_module, prepared.plan, found)


def test_the_layer_reads_the_second_norm() -> None:
    prepared, splits = splits_of(Block())
    assert splits == (Split("norm", "norm_scaled", ("transpose",)),)

    split = scaled_copy(prepared, (), splits)

    assert split.snapshots[-3].name == "split_norms"
    assert split.snapshots[-3].diff() == (
        "- transpose = torch.transpose(norm, 0, 1)                               float32[3,2,6]\n"
        "+ norm_scaled = LayerNorm(first)                                        float32[2,3,6]\n"
        "+ transpose = torch.transpose(norm_scaled, 0, 1)                        float32[3,2,6]"
    )
    assert torch.equal(split.graph_module(X), prepared.graph_module(X))
    assert split.graph_module.get_submodule("norm_scaled").weight is not split.graph_module.get_submodule("norm").weight


def test_the_plan_has_a_unit_and_qparams_for_it() -> None:
    prepared, splits = splits_of(Block())
    split = scaled_copy(prepared, (), splits)
    names = [unit.nodes for unit in prepared.plan.units]
    assert [unit.nodes for unit in split.plan.units] == [*names[:2], ("norm_scaled",), *names[2:]]
    assert split.plan.policies[TensorRef("norm_scaled")] == split.plan.policies[TensorRef("norm")]
    assert split.plan.qparams_owner(TensorRef("transpose")) == TensorRef("norm_scaled")
    assert split.coverage().int8_macs == prepared.coverage().int8_macs
    fxq.calibrate(split, [X], progress=False)
    fxq.calibrate(prepared, [X], progress=False)
    assert torch.equal(fxq.convert(split)(X), fxq.convert(prepared)(X))
    loaded = fxq.convert(split, to="fake_quant")
    assert torch.equal(loaded(X), fxq.convert(prepared, to="fake_quant")(X))
