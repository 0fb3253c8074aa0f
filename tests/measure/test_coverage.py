"""The coverage table: rows, shares, and how it reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.patterns.floats import EXPONENTIALS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 8), nn.Linear(8, 2, bias=False), nn.LogSoftmax(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


def prepared(**options) -> fxq.Quantizer:
    return fxq.prepare(Net().eval(), torch.rand(3, 4), **options)


def test_rows():
    coverage = prepared().coverage()
    assert [(row.node, row.module, row.operator, row.fate, row.macs) for row in coverage] == [
        ("a", "a", "linear", "int8", 3 * 4 * 8),
        ("act", "act", "LogSoftmax", "float", 0),
        ("b", "b", "linear", "int8", 3 * 8 * 2),
    ]
    assert [row.reason for row in coverage] == ["", EXPONENTIALS, ""]
    assert all("test_coverage.py:" in row.line for row in coverage)
    assert len(coverage) == 3
    assert coverage.int8_macs == 1.0


def test_the_share_of_multiply_accumulates():
    rules = fxq.get_default_qconfig_mapping().set_module_name("b", None)
    coverage = prepared(qconfig=rules).coverage()
    assert coverage.int8_macs == 96 / (96 + 48)
    assert [row.node for row in coverage.float_rows] == ["act", "b"]
    assert [row.excused for row in coverage.float_rows] == [False, True]


def test_the_table():
    assert str(prepared().coverage()).splitlines() == [
        "unit          count     MACs  becomes       where, and why not",
        f"----------  -------  -------  ------------  -----{'-' * len(EXPONENTIALS)}",
        "linear            2  100.0 %  int8 → float  a … b",
        f"LogSoftmax        1    0.0 %  float         act: {EXPONENTIALS}",
        "2 units become int8, 1 operators stay float; 100.00 % of 0.0 M multiply-accumulates become int8.",
    ]


def test_what_stays_float_for_the_same_reason_shares_a_line():
    layers = (nn.Linear(4, 4), nn.LogSoftmax(1), nn.Linear(4, 4), nn.LogSoftmax(1))
    lines = str(fxq.prepare(nn.Sequential(*layers).eval(), torch.rand(2, 4)).coverage()).splitlines()
    assert lines[2:4] == [
        "linear            2  100.0 %  int8 → float  0 … 2",
        f"LogSoftmax        2    0.0 %  float         1 … 3: {EXPONENTIALS}",
    ]


def test_printing_a_quantizer_prints_its_coverage():
    quantizer = prepared()
    assert str(quantizer) == f"Net for backend 'cpu'\n{quantizer.coverage()}"


def test_notebooks_show_a_table_whatever_the_names():
    net = nn.Sequential()
    net.add_module("<b>", nn.Linear(4, 4))
    shown = fxq.prepare(net.eval(), torch.rand(3, 4)).coverage()._repr_html_()
    assert shown.count("<tr>") == 2
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "100.00 % of" in shown


class Whole(nn.Module):
    """Nine in ten of the products of its model."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 36), nn.Linear(36, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def test_what_is_kept_whole_in_float_counts():
    x = torch.rand(3, 8)
    model = nn.Sequential(nn.Linear(8, 8), Whole()).eval()
    assert fxq.prepare(model, x).coverage().int8_macs == 1.0
    coverage = fxq.prepare(model, x, leaf_modules=(Whole,)).coverage()
    assert [(row.node, row.fate, row.macs) for row in coverage] == [("_0", "int8", 3 * 64), ("_1", "float", 3 * 576)]
    assert coverage.int8_macs == 0.1
    assert "Whole         1  90.0 %  float" in str(coverage)
    assert str(coverage).endswith("10.00 % of 0.0 M multiply-accumulates become int8.")


class Indices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).argmax(-1)


def test_what_gives_integers_counts_too():
    x, layers = torch.rand(3, 8), (nn.Linear(8, 8), Indices())
    coverage = fxq.prepare(nn.Sequential(*layers).eval(), x, leaf_modules=(Indices,)).coverage()
    assert coverage.int8_macs == 0.5
    assert (coverage.rows[1].fate, coverage.rows[1].reason) == ("float", "kept whole and in float by leaf_modules")


class Outside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() @ x.detach().numpy().T)


def test_what_cannot_be_counted_is_told_beside_the_total():
    x = torch.rand(3, 8)
    coverage = fxq.prepare(nn.Sequential(nn.Linear(8, 8), Outside()).eval(), x, leaf_modules=(Outside,)).coverage()
    assert [row.uncounted for row in coverage] == ["", "Tensor.numpy"]
    assert coverage.uncounted_rows == coverage.rows[1:]
    lines = str(coverage).splitlines()
    assert lines[3].split()[:4] == ["Outside", "1", "?", "float"]
    assert lines[-1] == (
        "1 units become int8, 1 operators stay float; 100.00 % of 0.0 M multiply-accumulates become int8."
        " Those of 1 (Tensor.numpy) could not be counted, and are left out."
    )
