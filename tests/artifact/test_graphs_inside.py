"""Graphs that a model calls as modules are in its file: branches of ``torch.cond``, and standalone modules."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.format import LoadLimits, read_header, read_tensors, write_file
from fxquant.compat.quantize_fx import PrepareCustomConfig, convert_fx, get_default_qconfig_mapping, prepare_fx
from fxquant.errors import ArtifactError
from fxquant.graph.module import get_metadata
from tests.sampling import one_of

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.export, on torch.cond


class Chooses(nn.Module):
    """Two branches of which one has a branch itself, around layers; ``shared`` is in both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.shared = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 8)
        self.up, self.down, self.inner = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        def positive(y: Tensor) -> Tensor:
            z = torch.relu(self.up(self.shared(y)))
            return torch.cond(z.sum() > 4, lambda z: self.inner(z) * self.scale, lambda z: z + 1, (z,))

        def negative(y: Tensor) -> Tensor:
            return self.down(self.shared(y)) * 2

        y = self.first(x)
        return self.last(torch.cond(y.sum() > 0, positive, negative, (y,)))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.conv = nn.Linear(8, 8), nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(self.fc(x)))


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.inner, self.b = nn.Linear(8, 8), Inner(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.inner(self.a(x)))


BATCHES = [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) * 2 for seed in range(12)] * 2


@pytest.fixture(scope="module")
def prepared() -> Any:
    torch.manual_seed(0)
    prepared = fxq.prepare(Chooses().eval(), BATCHES[0])
    fxq.calibrate(prepared, BATCHES, progress=False)
    return prepared


@pytest.fixture
def again(tmp_path: Path) -> Callable[[Any], Any]:
    def saved_and_loaded(model: Any) -> Any:
        fxq.save(model, tmp_path / "model.fxq")
        return fxq.load(tmp_path / "model.fxq")

    return saved_and_loaded


def assert_equal(first: Any, second: Any) -> None:
    with torch.no_grad():
        assert all(torch.equal(first(x), second(x)) for x in BATCHES)


@pytest.mark.parametrize("form", one_of(3, ["int8", "reference", "fake_quant"]))
def test_branches_of_a_converted_model(prepared, again, form):
    model = fxq.convert(prepared, to=form)
    loaded = again(model)
    assert_equal(loaded, model)
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert loaded.quant_coverage.rows == tuple(
        type(row)(**{field: getattr(row, field) for field in row.__slots__} | {"line": ""})
        for row in model.quant_coverage.rows
    )
    branch = loaded.get_submodule("cond.when_true")
    assert branch.quant_plan.units == model.get_submodule("cond.when_true").quant_plan.units
    assert_equal(copy.deepcopy(loaded), model)


def test_branches_of_a_prepared_model(prepared, again):
    loaded = again(prepared)
    assert str(loaded.coverage()) == str(prepared.coverage()).partition("\nThe model was captured")[0]
    assert list(loaded.branches) == list(prepared.branches)
    assert_equal(loaded, prepared)
    assert_equal(fxq.convert(loaded), fxq.convert(prepared))
    for quantizer in (loaded, prepared):
        fxq.calibrate(quantizer, BATCHES[:2], progress=False)  # more batches change both alike
    assert_equal(fxq.convert(loaded), fxq.convert(prepared))


def test_branches_of_a_float_graph(prepared, again):
    assert_equal(again(prepared.graph_module), prepared.graph_module)


@pytest.mark.slow
def test_a_branch_that_stays_float(again):
    torch.manual_seed(0)
    model = Chooses().eval()
    with torch.no_grad():
        taken = [x for x in BATCHES if float(model.first(x).sum()) < 0]
    prepared = fxq.prepare(model, BATCHES[0])
    fxq.calibrate(prepared, taken, progress=False)
    with pytest.warns(fxq.FxQuantWarning, match="a branch of torch.cond stays float"):
        converted = fxq.convert(prepared)
    assert_equal(again(converted), converted)


@pytest.mark.parametrize("of_integers", [False, True])
def test_standalone_modules(again, of_integers):
    torch.manual_seed(0)
    x, own = torch.randn(5, 4, 8), PrepareCustomConfig()
    if of_integers:
        own.set_input_quantized_indexes([0]).set_output_quantized_indexes([0])
    mapping = get_default_qconfig_mapping()
    custom = PrepareCustomConfig().set_standalone_module_name("inner", mapping, (x,), own, None)
    prepared = prepare_fx(Around().eval(), mapping, (x,), custom)
    prepared(x)
    model = convert_fx(prepared)
    loaded = again(model)
    assert torch.equal(loaded(x), model(x))
    noted = [get_metadata(loaded.inner, f"integer_{way}") for way in ("inputs", "outputs")]
    assert list(map(bool, noted)) == [of_integers] * 2
    assert str(loaded.inner.quant_coverage) == str(model.inner.quant_coverage)


def test_a_converted_model_inside_of_another(prepared, again):
    inner = fxq.convert(prepared)
    outer = fxq.prepare(nn.Sequential(nn.Linear(8, 8), inner).eval(), BATCHES[0], leaf_modules=("1",))
    fxq.calibrate(outer, BATCHES, progress=False)
    model = fxq.convert(outer)
    assert_equal(again(model), model)


def changed(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the graph in a file."""
    header = read_header(path, LoadLimits())
    tensors, data = dict(read_tensors(path, header)), header.graph()
    edit(data)
    write_file(path, tensors, {**header.metadata, "fxquant.graph": json.dumps(data)})


@pytest.mark.parametrize(
    ("edit", "message"),
    one_of(
        3,
        [
            (lambda data: data["inside"].pop("cond.when_true"), "other graphs than its modules"),
            (lambda data: data.pop("inside"), "other graphs than its modules"),
            (lambda data: data.update(inside=[]), "other graphs than its modules"),
            (
                lambda data: data["inside"]["cond.when_false"].update(kind="prepared"),
                "a graph in the file has other fields",
            ),
            (lambda data: data["inside"]["cond.when_false"].pop("plan"), "a graph in the file has other fields"),
            (lambda data: data["inside"]["cond.when_false"].update(nodes=[]), "the file holds no graph"),
            (lambda data: data["inside"]["cond.when_false"].update(nodes=7), "the file holds no graph"),
            (
                lambda data: data["inside"]["cond.when_false"]["nodes"][1].update(target="cond.when_true"),
                "file has not",
            ),
            (lambda data: data["inside"]["cond.when_false"]["nodes"][0].update(name="x); import os"), "identifier"),
            (lambda data: data["inside"]["cond.when_false"].update({"class": "A B"}), "identifier"),
            (
                lambda data: data["modules"]["cond.when_false"].update(type="torch.nn.Module"),
                "other graphs than its modules",
            ),
            (lambda data: data["modules"]["cond"].update(config={"x": 1}), "a torch.cond in the file"),
            (lambda data: data["modules"]["first"].update(type="torch.cond"), "a torch.cond in the file"),
        ],
    ),
)
def test_damaged_files_are_refused(prepared, tmp_path, edit, message):
    path = tmp_path / "model.fxq"
    fxq.save(fxq.convert(prepared), path)
    changed(path, edit)
    with pytest.raises(ArtifactError, match=message):
        fxq.load(path)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (7, "no coverage that can be read"),
        ([["cond"]], "no coverage that can be read"),
        ([["cond", 7]], "no coverage that can be read"),
        ([["cond", [{"node": "cond"}]]], "the file"),
        ([["nowhere", []]], "the branches of a call that is none"),
        ([[["cond"], []]], "the branches of a call that is none"),
    ],
)
def test_damaged_rows_of_branches_that_stay_float_are_refused(prepared, tmp_path, left, message):
    path = tmp_path / "model.fxq"
    fxq.save(prepared, path)
    changed(path, lambda data: data["preparation"].update(float_branches=left))
    with pytest.raises(ArtifactError, match=message):
        fxq.load(path)


def test_the_header_counts_nodes_of_all_graphs(prepared, tmp_path):
    model = fxq.convert(prepared)
    fxq.save(model, tmp_path / "model.fxq")
    info = fxq.inspect_artifact(tmp_path / "model.fxq")
    assert info.nodes > len(model.graph.nodes)
    assert (info.modules["graph"], info.modules["torch.cond"]) == (4, 2)
