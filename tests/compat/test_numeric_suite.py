"""The numeric suite: weights and values of both models, unit by unit, with ``fxquant.compare`` as the judge."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.compat import numeric_suite as by_path
from fxquant.compat import numeric_suite_fx as ns
from fxquant.compat.qconfig_mapping import get_default_qconfig_mapping
from fxquant.compat.quantize_fx import convert_fx, prepare_fx
from fxquant.errors import InputError, NotOffered
from fxquant.graph.macs import TRANSPOSED
from fxquant.measure.noise import sqnr
from fxquant.observers.defaults import default_observer, default_per_channel_weight_observer
from fxquant.observers.fixed import PlaceholderObserver
from fxquant.observers.minmax import MinMaxObserver

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def models() -> tuple[nn.Module, nn.Module, nn.Module]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(32, 4)).eval()
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (X,))
    prepared(X)
    return model, prepared, convert_fx(prepared)


def by_fqn(results: ns.Results, kind: str, name: str) -> dict[str, dict]:
    return {row["fqn"]: row for found in results.values() for row in found[kind][name] if row["fqn"]}


@pytest.mark.parametrize("first", [0, 1], ids=["float", "prepared"])
def test_weights(models, first):
    found = by_fqn(ns.extract_weights("a", models[first], "b", models[2]), "weight", "b")
    assert found.keys() == {"0.0", "2"}
    results = ns.extract_weights("b", models[2], "a", models[first])
    ns.extend_logger_results_with_comparison(results, "a", "b", ns.compute_sqnr, "dB")
    row = by_fqn(results, "weight", "b")["2"]
    exact = by_fqn(results, "weight", "a")["2"]["values"][0]
    assert torch.equal(exact, models[0][2].weight)
    assert float(row["dB"][0]) == pytest.approx(sqnr(exact, row["values"][0]), abs=0.01)
    assert row["ref_node_target_type"] == "torch.nn.modules.linear.Linear"


@pytest.mark.parametrize("first", [0, 1], ids=["float", "prepared"])
def test_values_of_both_models(models, first):
    floats, int8 = ns.add_loggers("float", models[first], "int8", models[2], ns.OutputLogger)
    assert torch.equal(floats(X), models[0](X))
    assert torch.equal(int8(X), models[2](X))
    results = ns.extract_logger_info(floats, int8, ns.OutputLogger, "int8")
    ns.extend_logger_results_with_comparison(results, "float", "int8", ns.compute_sqnr, "dB")
    compared = {row.module: row.accumulated.sqnr for row in fxq.compare(models[0], models[2], [X], progress=False)}
    for path, row in by_fqn(results, "node_output", "int8").items():
        if path in compared:
            assert float(row["dB"][0]) == pytest.approx(compared[path], abs=0.1)
    assert {"0.0", "2"} <= by_fqn(results, "node_output", "int8").keys() & compared.keys()
    with pytest.raises(InputError, match="no model with loggers"):
        ns.extract_logger_info(floats, int8, ns.OutputLogger, "third")
    ns.loggers_set_enabled(int8, False)
    int8(X)
    ns.loggers_set_enabled(int8, True)
    ns.loggers_set_save_activations(int8, False)
    int8(X)
    assert all(len(row["values"]) == 1 for row in by_fqn(results, "node_output", "int8").values())


def test_float_units_beside_the_quantized_ones(models):
    shadowed = ns.add_shadow_loggers("float", models[0], "int8", models[2], ns.OutputLogger)
    assert torch.equal(shadowed(X), models[2](X))
    results = ns.extract_shadow_logger_info(shadowed, ns.OutputLogger, "int8")
    float_run, int8_run = ns.add_loggers("float", models[0], "int8", models[2], ns.OutputLogger)
    float_run(X), int8_run(X)
    whole = ns.extract_logger_info(float_run, int8_run, ns.OutputLogger, "int8")
    own, through = (
        float((by_fqn(one, "node_output", "float")["2"]["values"][0] - models[2](X)).norm()) for one in (results, whole)
    )
    assert 0 < own < through


def test_distances():
    x, y = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.5])
    assert float(ns.compute_sqnr(x, y)) == pytest.approx(20.0)
    assert float(ns.compute_normalized_l2_error(x, y)) == pytest.approx(0.1)
    assert float(ns.compute_cosine_similarity(x, x)) == pytest.approx(1.0)
    assert [float(one) for one in ns.compute_sqnr((x, x), (y, y))] == pytest.approx([20.0, 20.0])
    assert ns.compute_sqnr(x.long(), y.long()) is None


def test_eager_mode(models):
    model, _, int8 = models
    weights = by_path.compare_weights(model.state_dict(), int8.state_dict())
    assert sqnr(weights["2.weight"]["float"], weights["2.weight"]["quantized"]) > 40
    outputs = by_path.compare_model_outputs(model, int8, X)
    assert torch.equal(outputs["2.stats"]["float"][0], model(X))
    assert torch.equal(outputs["2.stats"]["quantized"][0], int8(X))
    shadow = by_path.compare_model_stub(model, int8, {nn.Linear}, X)
    assert list(shadow) == ["2.stats"]
    assert sqnr(shadow["2.stats"]["float"][0], int8(X)) > sqnr(model(X), int8(X))


class Product(nn.Module):
    """``x @ w`` with the weight as GPT-2 has it, [in, out]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))


class OfProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = Product()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.product.weight


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3),
        nn.ConvTranspose1d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
        nn.ConvTranspose2d(4, 2, (3, 2), bias=False),
        nn.ConvTranspose2d(4, 6, 1, groups=2),
        nn.ConvTranspose2d(4, 4, 3, groups=4),
        nn.ConvTranspose3d(4, 4, 1, groups=2),
        OfProduct(),
    ],
    ids=["conv", "1d", "2d", "narrow", "groups", "depthwise", "3d", "product"],
)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
def test_weights_of_transposed_layouts(layer, per_channel):
    torch.manual_seed(0)
    model = nn.Sequential(layer, nn.ReLU()).eval()
    key = "0.product.weight" if isinstance(layer, OfProduct) else "0.weight"
    weight = model.state_dict()[key].normal_()
    x = torch.randn(2, *weight.shape[:1], *[5] * (weight.dim() - 2))
    observer = MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
    if per_channel:
        axis = int(isinstance(layer, TRANSPOSED) and layer.groups < len(weight))
        observer = default_per_channel_weight_observer.with_args(ch_axis=axis)
    prepared = fxq.prepare(model, x, fxq.QConfig(default_observer, observer))
    prepared.observe(x)
    for form in ("int8", "reference"):
        quantized = dict(fxq.convert(prepared, to=form).state_dict())
        found = by_path.compare_weights({key: weight}, quantized)[key]
        assert torch.equal(found["float"], weight)
        assert sqnr(weight, found["quantized"]) > 35


def test_weights_with_scales_of_groups_are_left_out():
    model, x = nn.Sequential(nn.Linear(8, 4)).eval(), torch.randn(3, 8)
    grouped = default_per_channel_weight_observer.with_args(group_size=4)
    prepared = fxq.prepare(model, x, fxq.QConfig(PlaceholderObserver, grouped))
    quantized = fxq.convert(prepared).state_dict()
    assert quantized["0.weight_scale"].shape == (4, 2)
    assert by_path.compare_weights(model.state_dict(), quantized) == {}


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["deepcopy", "pickle"]
)
def test_copies_have_loggers_of_their_own(models, copied):
    given = ns.add_loggers("float", models[0], "int8", models[2], ns.OutputLogger)
    runs = copied(given)
    assert torch.equal(runs[0](X), models[0](X))
    assert torch.equal(runs[1](X), models[2](X))
    for one in given:
        one(X)
    expected, found = (ns.extract_logger_info(*each, ns.OutputLogger, "int8") for each in (given, runs))
    same_values(found, expected)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["deepcopy", "pickle"]
)
def test_copies_of_shadowed_models_have_loggers_of_their_own(models, copied):
    given = ns.add_shadow_loggers("float", models[0], "int8", models[2], ns.OutputLogger)
    run = copied(given)
    assert torch.equal(run(X), models[2](X))
    given(X)
    expected, found = (ns.extract_shadow_logger_info(one, ns.OutputLogger, "int8") for one in (given, run))
    same_values(found, expected)


def same_values(found: ns.Results, expected: ns.Results) -> None:
    assert found
    assert found.keys() == expected.keys()
    for layer, row in expected.items():
        for name in ("float", "int8"):
            (own,), (other,) = (each["node_output"][name][0]["values"] for each in (found[layer], row))
            assert torch.equal(own, other)


def test_layers_named_as_methods_of_dicts_are_logged():
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(keys=nn.Linear(4, 4), values=nn.Linear(4, 4))).eval()
    x = torch.randn(3, 4)
    prepared = fxq.prepare(model, x)
    prepared.observe(x)
    int8 = fxq.convert(prepared)
    outputs = by_path.compare_model_outputs(model, int8, x)
    assert outputs.keys() == {"keys.stats", "values.stats"}
    assert torch.equal(outputs["values.stats"]["quantized"][0], int8(x))


def test_what_is_refused(models):
    model, prepared, int8 = models
    with pytest.raises(InputError, match="one of the models is to be quantized"):
        ns.extract_weights("a", model, "b", prepared)
    with pytest.raises(InputError, match="no layer of the quantized model"):
        ns.extract_weights("a", nn.Sequential(nn.Linear(3, 3)).eval(), "b", int8)
    with pytest.raises(NotOffered, match="tables of operators"):
        ns.extract_weights("a", model, "b", int8, unmatchable_types_map={})
    with pytest.raises(NotOffered, match="inputs of units"):
        ns.add_loggers("a", model, "b", int8, ns.OutputLogger, should_log_inputs=True)
    with pytest.raises(NotOffered, match="allow_list"):
        by_path.compare_model_outputs(model, int8, X, allow_list=[nn.Linear])
    with pytest.raises(InputError, match="of these classes"):
        by_path.compare_model_stub(model, int8, {nn.LSTM}, X)
