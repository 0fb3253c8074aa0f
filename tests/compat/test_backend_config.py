"""The tables of torch.ao's back ends, entry by entry, and what ``prepare_fx`` makes of them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from fxquant import FxQuantWarning
from fxquant.compat import backend_config
from fxquant.compat.qconfig import float_qparams_weight_only_qconfig
from fxquant.compat.qconfig_mapping import QConfigMapping, get_default_qconfig_mapping
from fxquant.compat.quantize_fx import convert_fx, prepare_fx
from fxquant.nn import QuantizedConv, QuantizedEmbedding, QuantizedLinear
from tests.sampling import one_of

NAMES = ("native", "x86", "fbgemm", "onednn", "qnnpack", "tensorrt")


def made(name: str) -> Any:
    return getattr(backend_config, f"get_{name}_backend_config")()


def dtypes(entry: Any) -> list[str]:
    roles = ("input", "output", "weight")
    return sorted(
        str(
            (
                [vars(getattr(each, f"{role}_dtype_with_constraints")) for role in roles],
                each.bias_dtype,
                each.is_dynamic,
            )
        )
        for each in entry.dtype_configs
    )


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_those_of_torch_ao(name):
    pytest.importorskip("torch.ao.quantization.backend_config.utils")
    module = importlib.import_module(f"torch.ao.quantization.backend_config.{name}")
    theirs = {each.pattern: each for each in getattr(module, f"get_{name}_backend_config")().configs}
    theirs = {key: each for key, each in theirs.items() if key is not None and "torch.ao" not in str(key)}
    ours = {each.pattern: each for each in made(name).configs}
    assert ours.keys() == theirs.keys()
    for key, entry in ours.items():
        other = theirs[key]
        assert dtypes(entry) == dtypes(other), key
        assert entry.observation_type.value == other.observation_type.value, key
        assert entry.root_module is other.root_module, key


def test_tables_are_fresh_and_have_the_older_form():
    first = made("native")
    first.configs[0].dtype_configs.clear()
    assert made("native").configs[0].dtype_configs
    assert backend_config.get_native_backend_config_dict()["name"] == "native"
    assert backend_config.get_tensorrt_backend_config_dict()["name"] == "tensorrt"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize("name", one_of(3, NAMES))
def test_layers_are_quantized_where_the_dtypes_agree(name):
    x = torch.arange(150, dtype=torch.float32).reshape(2, 3, 5, 5) % 7 - 3
    engine = "qnnpack" if name == "qnnpack" else "x86"
    if name == "tensorrt":  # it takes int8 activations, and the default qconfig has uint8
        with pytest.warns(FxQuantWarning, match="wants torch.qint8"):
            prepared = prepare_fx(Net().eval(), get_default_qconfig_mapping(engine), (x,), backend_config=made(name))
        return
    prepared = prepare_fx(Net().eval(), get_default_qconfig_mapping(engine), (x,), backend_config=made(name))
    prepared(x)
    kinds = {type(module) for module in convert_fx(prepared).modules()}
    assert {QuantizedConv, QuantizedLinear} <= kinds


def test_tables_of_embeddings_are_quantized():
    model = nn.Sequential(nn.Embedding(8, 4)).eval()
    mapping = QConfigMapping().set_object_type(nn.Embedding, float_qparams_weight_only_qconfig)
    indices = torch.arange(8)
    prepared = prepare_fx(model, mapping, (indices,), backend_config=made("fbgemm"))
    prepared(indices)
    assert any(isinstance(module, QuantizedEmbedding) for module in convert_fx(prepared).modules())
