"""What is taken apart, and what stays one operator: by configuration, by patterns, by what is known of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.graph.decompositions.compounds import MANY
from fxquant.patterns import DEFAULT_PATTERNS, Pattern, op, tensor
from fxquant.patterns.floats import COMPOUND
from tests.outputs import rounding_outputs

X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))


class Projection(nn.Module):
    """A linear layer as GPT-2 writes it: one addmm, its weight the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 6))
        self.bias = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = Projection()
        self.glu = nn.GLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.glu(self.projection(x))


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return torch.einsum("ij,kj->ik", y, y), torch.einsum("ij,kj,kl->il", y, y, y)


def units(prepared: fxq.Quantizer) -> list[str]:
    return [unit.pattern for unit in prepared.plan.units]


def reasons(prepared: fxq.Quantizer) -> dict[str, str]:
    return {row.operator: row.reason for row in prepared.coverage().float_rows if not row.excused}


def test_a_projection_is_a_layer_where_its_weight_stood():
    model = Gated().eval()
    prepared = fxq.prepare(model, X, rounding_outputs())
    assert units(prepared) == ["linear", "chunk", "getitem", "getitem", "sigmoid", "mul"]
    assert set(prepared.graph_module.state_dict()) == set(model.state_dict())
    torch.testing.assert_close(prepared(X), model(X))
    assert prepared.coverage().rows[0].module == "projection"


def test_a_product_has_the_name_and_the_line_of_the_einsum():
    prepared = fxq.prepare(Products().eval(), X, rounding_outputs())
    assert units(prepared) == ["linear", "permute", "matmul"]
    assert [row.node for row in prepared.coverage() if row.operator == "matmul"] == ["einsum"]
    assert "test_decompose_compounds.py" in next(row.line for row in prepared.coverage() if row.node == "einsum")
    assert reasons(prepared) == {"einsum": MANY}


@pytest.mark.parametrize("named", [torch.einsum, "einsum"])
def test_what_the_configuration_leaves_in_float_stays_whole(named):
    config = fxq.get_default_qconfig_mapping("cpu").set_object_type(named, None)
    prepared = fxq.prepare(Products().eval(), X, config)
    assert units(prepared) == ["linear"]
    assert [row.operator for row in prepared.coverage().float_rows] == ["einsum", "einsum"]


def test_a_rule_for_the_operator_decides_for_its_parts():
    config = fxq.get_default_qconfig_mapping("cpu").set_object_type(nn.GLU, None)
    prepared = fxq.prepare(Gated().eval(), X, config)
    assert units(prepared) == ["linear"]
    assert [row.operator for row in prepared.coverage().float_rows] == ["glu"]


def test_what_a_users_pattern_names_stays_whole():
    mine = Pattern("mine", op(F.glu)(tensor("x")), lower={"cpu": lambda view: nn.GLU()})
    prepared = fxq.prepare(Gated().eval(), X, rounding_outputs(), patterns=(mine, *DEFAULT_PATTERNS))
    assert units(prepared) == ["linear", "mine"]


def test_where_no_part_would_be_quantized_it_stays_whole():
    patterns = tuple(p for p in DEFAULT_PATTERNS if torch.matmul not in p.root.all_targets)
    prepared = fxq.prepare(Products().eval(), X, rounding_outputs(), patterns=patterns)
    assert units(prepared) == ["linear"]
    assert reasons(prepared) == {"einsum": COMPOUND}


def test_integers_and_constants_are_left_alone():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            counts = torch.einsum("ij,ij->i", (x > 0).long(), (x > 1).long())
            return F.linear(x, torch.einsum("ij,jk->ik", self.weight, self.weight)), counts

    prepared = fxq.prepare(Net().eval(), X, rounding_outputs())
    assert units(prepared) == ["linear"]
    assert [node.target for node in prepared.graph.nodes].count(torch.einsum) == 1
    assert reasons(prepared) == {}


def test_an_einsum_that_changes_nothing_is_gone():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.einsum("ij->ij", x))

    model = Net().eval()
    prepared = fxq.prepare(model, X, rounding_outputs())
    assert [node.name for node in prepared.graph.nodes] == ["x", "layer", "output"]
    assert torch.equal(prepared(X), model(X))
