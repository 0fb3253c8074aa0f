"""What torch.fx cannot trace is exported: that submodule alone, else the model; the rest stays in float."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning, InputError, TracingError, UnknownNameError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class MakesModules(nn.Module):
    """Calls a module that it does not hold: torch.fx refuses, torch.export does not care."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        y = nn.ReLU()(self.fc(x)) * scale
        return self.norm(y), {"before": y}


class Gate(nn.Module):
    """Branches on values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x


class Around(nn.Module):
    """Holds such a block, twice called, between layers that share a weight."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = block
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        y, more = self.block(self.first(x))
        z, _ = self.block(y, scale=1.0)
        return self.last(z + more["before"])


def int8(prepared: Any, x: Tensor) -> Any:
    prepared.observe(x)
    return prepared.convert(engine="graph")


def test_the_submodule_alone_is_exported():
    model = Around(MakesModules()).eval()
    prepared = fxq.prepare(model, X)
    assert prepared.coverage().int8_macs == 1.0
    last = str(prepared.coverage()).splitlines()[-1]
    assert last.startswith("'block' was captured by torch.export (torch.fx of 'block' failed: NameError: module is not")
    torch.testing.assert_close(prepared(X), model(X), rtol=0, atol=0)
    names = [name for name, _ in prepared.root.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert [unit.nodes for unit in prepared.plan.units if "block_fc" in unit.nodes]
    larger = torch.randn(7, 8)
    converted = int8(prepared, X)
    assert converted(larger).shape == (7, 8)
    assert (converted(X) - model(X)).abs().max() < 0.2


def test_rules_name_what_is_inside():
    config = fxq.get_default_qconfig_mapping().set_module_name("block.fc", None)
    prepared = fxq.prepare(Around(MakesModules()).eval(), X, config)
    rows = prepared.coverage().float_rows
    assert {row.module for row in rows if row.operator == "Linear"} == {"block.fc"}
    config = fxq.get_default_qconfig_mapping().set_object_type(MakesModules, None)
    rows = fxq.prepare(Around(MakesModules()).eval(), X, config).coverage().float_rows
    assert {row.module for row in rows if row.operator == "Linear"} == {"block.fc"}


def test_the_whole_model_is_exported_where_its_own_forward_is_at_fault():
    model = MakesModules().eval()
    prepared = fxq.prepare(model, X)
    assert prepared.coverage().captures[-1].by == "torch.export"
    assert (
        str(prepared.coverage()).splitlines()[-1].startswith("The model was captured by torch.export (torch.fx failed:")
    )
    got, expected = int8(prepared, X)(X), model(X)
    assert got[1].keys() == {"before"}
    assert (got[0] - expected[0]).abs().max() < 0.2


def test_what_neither_takes_stays_whole():
    model = nn.Sequential(nn.Linear(8, 8), Gate(), nn.Linear(8, 8)).eval()
    with pytest.warns(FxQuantWarning, match=r"torch\.fx cannot trace the submodule '1'"):
        prepared = fxq.prepare(model, X)
    (line,) = [line for line in str(prepared.coverage()).splitlines() if "was not captured" in line]
    assert line.startswith("'1' was not captured, and stays whole (torch.fx of '1' failed: a branch (if, while, ")
    assert "torch.export of '1' failed: " in line
    assert [row.module for row in prepared.coverage().float_rows] == ["1"]
    with pytest.raises(TracingError, match=r"torch\.fx cannot trace the submodule '1'"):
        fxq.prepare(model, X, strict=True)


def test_one_part_is_exported_and_another_stays_whole():
    inner = nn.Sequential(nn.Linear(8, 8), Gate())
    model = Around(MakesModules()).eval()
    model.first = inner.eval()
    with pytest.warns(FxQuantWarning, match="cannot trace the submodule 'first.1'"):
        prepared = fxq.prepare(model, X)
    assert [(one.path, one.by, not one.error) for one in prepared.coverage().captures] == [
        ("first.1", "torch.fx", False),
        ("first.1", "torch.export", False),
        ("", "torch.export", False),
        ("block", "torch.fx", False),
        ("block", "torch.export", True),
    ]
    assert [row.module for row in prepared.coverage().float_rows if row.operator == "Gate"] == ["first.1"]
    assert [unit.nodes for unit in prepared.plan.units if "block_fc" in unit.nodes]


def test_what_is_to_stay_whole_is_not_exported():
    model = nn.Sequential(nn.Linear(8, 8), MakesModules()).eval()
    with pytest.warns(FxQuantWarning, match="cannot trace the submodule '1'"):
        prepared = fxq.prepare(model, X, leaf_modules=("1.norm",))
    assert "which leaf_modules or a pattern of your own names" in str(prepared.coverage())


@pytest.mark.parametrize("how", ["fx", "export"])
def test_one_way_alone(how):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    prepared = fxq.prepare(model, X, capture=how)
    assert prepared.coverage().captures == ()
    assert torch.equal(int8(prepared, X)(X), int8(fxq.prepare(model, X), X)(X))


def test_a_way_that_fails():
    with pytest.raises(TracingError, match=r"torch\.fx cannot trace the forward of the model itself"):
        fxq.prepare(MakesModules().eval(), X, capture="fx")
    with pytest.raises(TracingError) as caught:
        fxq.prepare(nn.Sequential(nn.Linear(8, 8), Gate()).eval(), X, capture="export")
    lines = str(caught.value).splitlines()
    assert lines[0] == "torch.export cannot export the model (a Sequential)"
    assert lines[1].startswith("  got:      GuardOnDataDependentSymNode: ")
    assert lines[-1] == "  hint:     torch.export.export(model, example_inputs, strict=False) by itself says more"
    with pytest.raises(
        UnknownNameError, match="unknown way to capture\n  got:      'exprt'\n  expected: auto, fx, export"
    ):
        fxq.prepare(nn.Linear(8, 8).eval(), X, capture="exprt")


ELSEWHERE: dict[str, Any] = {}
exec("def kept(x, keep): return x[:, slice(-keep, None) if isinstance(keep, int) else keep, :]", ELSEWHERE)
"""A function of another module."""


class Kept(nn.Module):
    """Asks a number among its arguments for its type, which torch.fx hides."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, keep: int = 0) -> Tensor:
        return self.fc(ELSEWHERE["kept"](x, keep))


def test_a_graph_that_gives_other_sizes_than_the_model_is_refused():
    x = torch.randn(2, 3, 8)
    model = Kept().eval()
    with pytest.raises(TracingError) as caught:
        fxq.prepare(model, x, capture="fx")
    assert str(caught.value).splitlines()[:2] == [
        "the graph that torch.fx makes gives results of other sizes than the model",
        "  got:      float32[2, 4] where the model gives float32[2, 3, 4]",
    ]
    prepared = fxq.prepare(model, x)
    torch.testing.assert_close(prepared(x), model(x))
    assert "captured by torch.export" in str(prepared.coverage())


def test_training_goes_on_through_what_was_exported():
    model = Around(MakesModules())
    trained = fxq.prepare_qat(model, X)
    assert sorted(name for name, _ in trained.named_parameters()) == sorted(
        name for name, _ in model.named_parameters()
    )
    trained.train()(X).sum().backward()
    assert trained.get_parameter("block.fc.weight").grad is not None
    assert fxq.convert(trained.eval())(X).shape == (4, 8)


class Tied(nn.Module):
    """Shares a weight between what is exported and what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.block = MakesModules()
        self.last = nn.Linear(8, 8)
        self.last.weight = self.block.fc.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(x)[0])


def test_a_shared_weight_stays_one():
    prepared = fxq.prepare(Tied().eval(), X)
    assert prepared.modules["last"].weight is prepared.modules["block.fc"].weight


class Unrolled(nn.Module):
    """Holds a recurrent layer, of which torch.export fixes the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return nn.ReLU()(self.lstm(x)[0])


class Calls(nn.Module):
    """Calls a module that it does not hold."""

    def __init__(self, fc: nn.Module) -> None:
        super().__init__()
        self.fc = fc

    def forward(self, x: Tensor) -> Tensor:
        return nn.ReLU()(self.fc(x))


class OneRow(Calls):
    """Gives another number of dimensions for one row."""

    def forward(self, x: Tensor) -> Tensor:
        y = nn.ReLU()(self.fc(x))
        return y.flatten() if x.shape[0] == 1 else y


@pytest.mark.parametrize("capture", ["auto", "export"])
def test_an_example_of_one_row_fixes_no_batch(capture):
    model = nn.Sequential(nn.Linear(8, 8), Calls(nn.Linear(8, 8)), nn.Linear(8, 4)).eval()
    prepared = fxq.prepare(model, X[:1], capture=capture)
    assert all(one.fixed == () for one in prepared.coverage().captures)
    for rows in (1, 3, 4):
        torch.testing.assert_close(prepared(X[:rows]), model(X[:rows]))
    assert int8(prepared, X)(X[:2]).shape == (2, 4)


def test_one_row_that_is_something_else_than_many_stays_one():
    model = OneRow(nn.Linear(8, 8)).eval()
    prepared = fxq.prepare(model, X[:1])
    assert prepared(X[:1]).shape == (8,)
    assert prepared.coverage().captures[-1].fixed == ("x.size()[0] == 1",)
    with pytest.raises(InputError, match="exported for inputs of other sizes"):
        prepared(X)


def test_the_coverage_names_sizes_that_export_fixes():
    model = nn.Sequential(nn.Linear(8, 8), Unrolled()).eval()
    prepared = fxq.prepare(model, torch.randn(2, 5, 8))
    last = str(prepared.coverage()).splitlines()[-1]
    assert last.endswith(", for x.size()[1] == 5 alone; leaf_modules keeps a submodule whole, for any size.")
    with pytest.raises(InputError, match=r"x\.size\(\)\[1\] == 5"):
        prepared(torch.randn(2, 7, 8))
    whole = fxq.prepare(model, torch.randn(2, 5, 8), leaf_modules=["1"])
    assert whole(torch.randn(2, 7, 8)).shape == (2, 7, 8)


def test_open_sizes_that_torch_export_cannot_solve_are_fixed():
    pools = [nn.MaxPool2d(3, 2) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, 2, 11, 4, 2), *pools, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    x = torch.ones(2, 3, 64, 64)
    prepared = fxq.prepare(model.eval(), x, capture="export")
    assert [unit.pattern for unit in prepared.plan.units][:2] == ["conv", "max_pool2d"]
    assert prepared.coverage().captures[-1].fixed == tuple(
        f"input.size()[{dim}] == {size}" for dim, size in ((0, 2), (2, 64), (3, 64))
    )
    assert [name for name in vars(x) if "dynamo" in name] == []  # the marks of torch.export are on copies
