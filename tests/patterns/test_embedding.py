"""Look-ups of rows: what is planned, and that every form gives the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.measure.parity import measure_parity
from fxquant.nn import QuantizedEmbedding, QuantizedEmbeddingBag

INDICES = torch.arange(24).reshape(4, 6) % 11
FLOAT_SUMS = 1e-6
"""torch adds the rows of a bag in an order of its own: float32 sums of six numbers near 1, relative and absolute."""


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.fc = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.word(ids) + self.place(torch.arange(6)))


class Bags(nn.Module):
    def __init__(self, mode: str = "sum") -> None:
        super().__init__()
        self.bag, self.gate = nn.EmbeddingBag(11, 8, mode=mode), nn.Linear(6, 6)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.bag(input=ids, per_sample_weights=self.gate(x) if self.bag.mode == "sum" else None)


def assert_parity(prepared, *inputs: Tensor) -> None:
    """Every unit keeps the contract; look-ups are measured too."""
    parity = measure_parity(fxq.convert(prepared), fxq.convert(prepared, to="fake_quant"), inputs)
    assert [row.pattern for row in parity] == [unit.pattern for unit in prepared.plan.units]
    assert parity.breaches == ()


def converted(model: nn.Module, *inputs: Tensor, qconfig=None):
    prepared = fxq.prepare(model.eval(), inputs, qconfig).calibrate([inputs], progress=False)
    forms = {to: fxq.convert(prepared, to=to) for to in ("int8", "fake_quant", "reference")}
    with torch.no_grad():
        return prepared, forms, {to: form(*inputs) for to, form in forms.items()}


def test_tables_are_quantized_by_default():
    prepared, forms, results = converted(Words(), INDICES)
    assert [unit.pattern for unit in prepared.plan.units] == ["embedding", "embedding", "add", "linear"]
    assert prepared.coverage().float_rows == ()
    table = forms["int8"].word
    assert isinstance(table, QuantizedEmbedding)
    assert table.qparams("weight").scheme == fxq.QScheme(signed=False, axis=0, float_qparams=True)
    assert torch.equal(results["reference"], results["fake_quant"])
    assert_parity(prepared, INDICES)


@pytest.mark.parametrize(
    ("qconfig", "dtype", "columns"),
    [
        (fxq.float_qparams_weight_only_qconfig, torch.uint8, 8),
        (fxq.float_qparams_weight_only_qconfig_4bit, torch.uint8, 4),
        (fxq.get_default_qconfig(), torch.int8, 8),
    ],
)
def test_a_table_alone_in_every_form(qconfig, dtype, columns):
    """Nothing but the table is on a grid, so that all forms give the same bits; no calibration is asked for."""
    model = nn.Sequential(nn.Embedding(11, 8)).eval()
    prepared = fxq.prepare(model, INDICES, qconfig)
    int8 = fxq.convert(prepared)
    assert int8.get_submodule("0").weight.dtype == dtype
    assert int8.get_submodule("0").weight.shape == (11, columns)
    assert torch.equal(int8(INDICES), fxq.convert(prepared, to="fake_quant")(INDICES))
    assert torch.equal(int8(INDICES), fxq.convert(prepared, to="reference")(INDICES))
    assert not torch.equal(int8(INDICES), model(INDICES))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_in_every_form(mode):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    prepared, forms, results = converted(Bags(mode), INDICES, x)
    assert "embedding_bag" in [unit.pattern for unit in prepared.plan.units]
    assert isinstance(forms["int8"].bag, QuantizedEmbeddingBag)
    assert torch.equal(results["reference"], results["fake_quant"])
    torch.testing.assert_close(results["int8"], results["fake_quant"], rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
    assert_parity(prepared, INDICES, x)


def test_rows_are_put_on_a_grid_by_who_reads_them():
    prepared, forms, _ = converted(nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 3)), INDICES)
    assert [node.name for node in forms["int8"].graph.nodes] == [
        "input_1",
        "_0",
        "_0_quantize",
        "_1",
        "output",
    ]
    assert [(unit.pattern, "y" in unit.roles) for unit in prepared.plan.units] == [
        ("embedding", False),
        ("linear", False),
    ]


def refused(layer: nn.Module, qconfig=None) -> str:
    model = nn.Sequential(layer, nn.Linear(8, 3)).eval()
    (row,) = fxq.prepare(model, INDICES, qconfig).coverage().float_rows
    return row.reason


def test_reasons_to_stay_float():
    assert refused(nn.Embedding(11, 8, max_norm=1.0)) == "max_norm=1.0 changes the table in forward"
    grouped = fxq.QConfig(
        activation=fxq.MinMaxObserver,
        weight=fxq.PerChannelMinMaxObserver.with_args(scheme=fxq.QScheme(axis=0, group_size=4)),
    )
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, grouped)
    assert refused(nn.Embedding(11, 8), mapping) == (
        "backend 'cpu': tables with one scale per group have no integer operator; backend='reference' simulates them"
    )
    wide = fxq.QConfig(fxq.MinMaxObserver, fxq.PerChannelMinMaxObserver.with_args(bits=12))
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, wide)
    assert refused(nn.Embedding(11, 8), mapping) == "backend 'cpu': 12 bit tables do not fit bytes"
    mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Embedding, None)
    assert refused(nn.Embedding(11, 8), mapping) == "the configuration leaves it in float: set_object_type(Embedding)"


class Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.table, self.function = nn.Parameter(torch.randn(11, 8)), function

    def forward(self, ids: Tensor) -> Tensor:
        return self.function(ids, self.table).relu()


def test_a_function_of_a_constant_table_is_a_layer():
    prepared, forms, _ = converted(Function(F.embedding), INDICES)
    assert [unit.pattern for unit in prepared.plan.units] == ["embedding"]
    assert forms["int8"].table.weight.dtype == torch.uint8


def test_functions_that_stay_float(plan_of):
    plan = plan_of(lambda m, x: m.fc(F.embedding(INDICES, x)), x=torch.rand(11, 4), fc=nn.Linear(4, 2))
    assert [(r.node, r.reason) for r in plan.rejections] == [
        ("embedding", "its weight is computed from the inputs; only one that stays the same is quantized")
    ]
    plan = plan_of(lambda m, x: m.fc(F.embedding_bag(INDICES, x)), x=torch.rand(11, 4), fc=nn.Linear(4, 2))
    assert [(r.node, r.reason) for r in plan.rejections] == [
        ("embedding_bag", "its weight is computed from the inputs; only one that stays the same is quantized")
    ]


class BagFunction(nn.Module):
    """``F.embedding_bag`` with a table of its own; what a call gives by position and keyword are its inputs."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.table, self.options = nn.Parameter(torch.randn(11, 8, generator=torch.Generator().manual_seed(3))), options

    def forward(self, ids: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(ids, self.table, offsets, per_sample_weights=weights, **self.options)


FLAT, BORDERS = INDICES.reshape(-1), torch.tensor([0, 4, 4, 15, 24])
SHARES = torch.rand(24, generator=torch.Generator().manual_seed(4))
CALLS = {
    "each row is a bag": ({}, (INDICES,)),
    "offsets": ({}, (FLAT, BORDERS[:-1])),
    "the greatest": ({"mode": "max"}, (FLAT, BORDERS[:-1])),
    "offsets and weights": ({"mode": "sum"}, (FLAT, BORDERS[:-1], SHARES)),
    "weights alone": ({"mode": "sum"}, (INDICES, None, SHARES.reshape(4, 6))),
    "the last offset, and padding": ({"include_last_offset": True, "padding_idx": -9}, (FLAT, BORDERS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bag_of_a_constant_table_is_the_layer(name):
    """The layer of the same table is the oracle: prepared, converted, and trained."""
    options, inputs = CALLS[name]
    model = BagFunction(**options).eval()
    layer = nn.EmbeddingBag(11, 8, _weight=model.table.detach(), **options).eval()
    prepared = fxq.prepare(model, inputs)
    assert [unit.pattern for unit in prepared.plan.units] == ["embedding_bag"]
    assert prepared.coverage().float_rows == ()
    assert torch.equal(prepared(*inputs), model(*inputs))
    int8 = fxq.convert(prepared)
    assert isinstance(int8.table, QuantizedEmbeddingBag)
    assert torch.equal(int8(*inputs), QuantizedEmbeddingBag(layer, int8.table.qparams("weight"))(*inputs))
    trained = fxq.prepare_qat(model.train(), inputs)
    assert "table" in dict(trained.named_parameters())
    torch.testing.assert_close(trained(*inputs), int8(*inputs), rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
    assert torch.equal(fxq.convert(trained)(*inputs), int8(*inputs))


def test_bags_of_one_table_with_other_offsets_are_one_layer():
    class Twice(BagFunction):
        def forward(self, ids: Tensor, offsets: Tensor, others: Tensor) -> Tensor:
            return super().forward(ids, offsets) - super().forward(ids, others)

    model, inputs = Twice().eval(), (FLAT, BORDERS[:-1], BORDERS[:-1] // 2)
    prepared, forms, _ = converted(model, *inputs)
    assert torch.equal(prepared(*inputs), model(*inputs))
    assert [unit.pattern for unit in prepared.plan.units][:2] == ["embedding_bag"] * 2
    calls = [node.target for node in prepared.graph.nodes if node.op == "call_module"]
    assert calls[:2] == ["table", "table"]
    assert torch.equal(forms["reference"](*inputs), forms["fake_quant"](*inputs))


def test_a_bag_that_shortens_its_rows_stays_float():
    model = nn.Sequential(BagFunction(max_norm=1.0), nn.Linear(8, 3)).eval()
    (row,) = fxq.prepare(model, (INDICES,)).coverage().float_rows
    assert row.reason == "max_norm=1.0 changes the table in forward"
