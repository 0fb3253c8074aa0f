"""``migrate`` and the page of names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.compat import qconfig, quantization, quantize, quantize_fx, utils
from fxquant.compat.migration import CHANGED, HOMES, NOT_OFFERED
from fxquant.compat.migration_report import name_table, read
from fxquant.errors import FxQuantWarning, NotOffered

PAGE = Path(__file__).parent.parent.parent / "docs" / "migration.md"

SOURCE = """
import torch
import torch.ao.quantization as tq
from torch.ao.quantization import get_default_qconfig_mapping, prepare
from torch.ao.quantization.quantize_fx import prepare_fx
from torch.ao.nn.quantized import Linear

model.qconfig = tq.default_qconfig
torch.backends.quantized.engine = "x86"
prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (x,))
torch.ao.quantization.observer.MinMaxObserver.with_args(dtype=torch.qint8)
tq.fx.graph_module.ObservedGraphModule
torch.ao.nn.quantized.FloatFunctional()
torch.ao.ns._numeric_suite_fx.add_loggers
torch.ao.ns._numeric_suite_fx.prepare_n_shadows_model
torch.ao.quantization.fx._equalize.default_equalization_qconfig
"""


def test_each_name_is_judged():
    found = {(move.line, move.name): move for move in read(SOURCE).names}
    assert {key: move.verdict for key, move in found.items()} == {
        (4, "get_default_qconfig_mapping"): "with a change",
        (4, "prepare"): "with a change",
        (5, "prepare_fx"): "with a change",
        (6, "torch.ao.nn.quantized.Linear"): "not",
        (8, ".qconfig = ..."): "as it is",
        (8, "default_qconfig"): "as it is",
        (9, "torch.backends.quantized.engine"): "not",
        (11, "MinMaxObserver"): "as it is",
        (12, "torch.ao.quantization.fx.graph_module.ObservedGraphModule"): "not",
        (13, "FloatFunctional"): "with a change",
        (14, "add_loggers"): "as it is",
        (15, "prepare_n_shadows_model"): "not",
        (16, "default_equalization_qconfig"): "with a change",
    }
    assert found[8, "default_qconfig"].note == "from fxquant.compat.quantization import default_qconfig"
    assert found[13, "FloatFunctional"].note.startswith("fxquant.compat.stubs: its operators are torch's own")
    assert "the same" not in CHANGED.values(), "a line of the report is read alone"
    assert found[11, "MinMaxObserver"].note == "from fxquant.compat.observer import MinMaxObserver"
    assert "4 as it is, 5 with a change, 4 not" in str(read(SOURCE))
    assert str(read("x = 1")) == "no name of torch.ao.quantization is used"


def test_the_page_has_a_row_for_each_name():
    assert name_table() in PAGE.read_text("utf-8")


@pytest.mark.parametrize("home", sorted(HOMES.values()))
def test_homes_exist(home):
    pytest.importorskip(home)


def test_every_name_of_quantization_is_there_or_refused():
    for name in quantization.__all__:
        assert getattr(quantization, name) is quantization.OFFERED[name]
    for name in NOT_OFFERED:
        with pytest.raises(NotOffered, match=name):
            getattr(quantization, name)()
    assert set(CHANGED) <= set(quantization.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        quantization.nonsense  # noqa: B018
    assert "prepare_fx" in dir(quantization)


@pytest.mark.filterwarnings("ignore")
def test_public_names_of_torch_ao_are_accounted_for():
    ao = pytest.importorskip("torch.ao.quantization")
    known = {*quantization.OFFERED, *NOT_OFFERED}
    wanted = {name for part in ("qconfig", "qconfig_mapping", "fake_quantize") for name in getattr(ao, part).__all__}
    assert wanted - known == set()


def test_dynamic_quantization():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(3, 8)
    int8 = quantize.quantize_dynamic(model)
    assert isinstance(int8.get_submodule("0"), fxq.nn.QuantizedDynamicLinear)
    assert (int8(x) - model(x)).abs().max() < 0.1
    one = quantize.quantize_dynamic(model, {"2"})
    assert isinstance(one.get_submodule("0"), nn.Linear)
    table = nn.Sequential(nn.Embedding(10, 4)).eval()
    assert isinstance(
        quantize.quantize_dynamic(table, dtype=torch.quint8).get_submodule("0"), fxq.nn.QuantizedEmbedding
    )


def test_what_quantize_dynamic_does_not_do():
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    with pytest.raises(NotOffered, match="no such weights"):
        quantize.quantize_dynamic(model, dtype=torch.float16)
    with pytest.raises(NotOffered, match="no classes of quantized layers"):
        quantize.quantize_dynamic(model, mapping={nn.Linear: nn.Linear})


def test_dynamic_quantization_in_place():
    x = torch.randn(3, 8)
    models = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), OnValues().eval()]
    for model in models:
        expected = quantize.quantize_dynamic(model)
        reference = model(x)
        assert quantize.quantize_dynamic(model, {nn.Linear}, inplace=True) is model
        assert any(isinstance(module, fxq.nn.QuantizedDynamicLinear) for module in model.modules())
        assert torch.equal(model(x), expected(x))
        assert (model(x) - reference).abs().max() < 0.1


class OnValues(nn.Module):
    """torch.fx cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) if float(x.sum()) > -1e9 else x


class Recurrent(nn.Module):
    """A recurrent layer in front of a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


def test_recurrent_layers():
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(5, 2, 4)
    int8 = quantize.quantize_dynamic(model)
    assert not any(isinstance(module, nn.LSTM) for module in int8.modules())
    assert (int8(x) - model(x)).abs().max() < 0.05
    spec = {nn.LSTM: qconfig.default_weight_only_qconfig, nn.Linear: qconfig.default_dynamic_qconfig}
    with pytest.warns(FxQuantWarning, match="recurrent layers stay float"):
        int8 = quantize.quantize_dynamic(model, spec)
    assert isinstance(int8.head, fxq.nn.QuantizedDynamicLinear)


def test_stubs_pass_values_on():
    x = torch.randn(2, 3)
    assert torch.equal(quantization.QuantWrapper(nn.Identity())(x), x)


PUBLIC = {
    "torch.ao.quantization": "fxquant.compat.quantization",
    **{
        f"torch.ao.quantization.{name}": f"fxquant.compat.{name.rpartition('.')[2]}"
        for name in (
            *("quantize_fx", "quantize", "qconfig", "qconfig_mapping", "observer", "fake_quantize", "stubs"),
            *("fuse_modules", "fx.custom_config", "backend_config", "quant_type"),
        )
    },
    "torch.ao.quantization.quantization_mappings": "fxquant.compat.quantization",
    "torch.ao.quantization.fuser_method_mappings": "fxquant.compat.quantization",
    "torch.ao.ns._numeric_suite": "fxquant.compat.numeric_suite",
    "torch.ao.ns._numeric_suite_fx": "fxquant.compat.numeric_suite_fx",
}
"""Module of torch.ao whose public names have rows -> the module that takes its place."""


def public(module):
    """Return ``__all__`` without private names, or the classes and functions that a module defines."""
    listed = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return [name for name in listed if not name.startswith("_")]


@pytest.mark.parametrize("theirs", PUBLIC)
def test_every_public_name_of_torch_ao_has_a_row(theirs):
    module = pytest.importorskip(theirs)
    rows = set(re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert [name for name in public(module) if name not in rows] == []
    ours = importlib.import_module(PUBLIC[theirs])
    refused = [name for name in public(module) if name in NOT_OFFERED]
    for name in public(module):
        assert hasattr(ours, name)
    for name in refused[:5]:
        with pytest.raises(NotOffered, match=name):
            getattr(ours, name)()


def test_small_names():
    assert utils.get_combined_dict({1: "a", 2: "b"}, {2: "c"}) == {1: "a", 2: "c"}
    seen: list[torch.Tensor] = []
    model = nn.Identity()
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    utils.default_eval_fn(model, [(torch.ones(2), 1), (torch.zeros(2), 0)])
    assert [value.sum().item() for value in seen] == [2, 0]
    quantize_fx.attach_preserved_attrs_to_model(model, {"stride": 4})
    assert model.stride == model.meta["_user_preserved_attributes"]["stride"] == 4
