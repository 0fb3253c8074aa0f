"""Configurations as data: torch.ao's names, defaults, dict forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.compat import qconfig, qconfig_mapping
from fxquant.compat.backend_config import (
    BackendConfig,
    BackendPatternConfig,
    DTypeConfig,
    DTypeWithConstraints,
    ObservationType,
)
from fxquant.compat.custom_config import ConvertCustomConfig, FuseCustomConfig, PrepareCustomConfig
from fxquant.compat.duck_typing import scheme_of
from fxquant.compat.observer import MinMaxObserver
from fxquant.compat.qconfig import QConfig, QConfigDynamic, qconfig_equals
from fxquant.compat.qconfig_mapping import QConfigMapping
from fxquant.compat.quant_type import QuantType, _quant_type_from_str

BACKENDS = ("fbgemm", "x86", "qnnpack", "onednn")


PRESETS = [name for name in vars(qconfig) if name.endswith(("_qconfig", "_qconfig_4bit", "_v2"))]


def made_by(pair) -> list[object]:
    return [None if make is None else scheme_of(getattr(make(), "activation_post_process", make())) for make in pair]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "default_debug_qconfig"])
def test_presets_have_the_schemes_of_torch_ao(name):
    theirs = pytest.importorskip("torch.ao.quantization.qconfig")
    if name.startswith("get_"):
        made = [(getattr(qconfig, name)(backend), getattr(theirs, name)(backend)) for backend in BACKENDS]
    else:
        made = [(getattr(qconfig, name), getattr(theirs, name))]
    for ours, other in made:
        assert made_by(ours) == made_by(other)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["get_default_qconfig_mapping", "get_default_qat_qconfig_mapping"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_mappings_have_the_rules_of_torch_ao(name, backend):
    theirs = pytest.importorskip("torch.ao.quantization.qconfig_mapping")
    ours, other = (getattr(module, name)(backend) for module in (qconfig_mapping, theirs))
    assert list(ours.object_type_qconfigs) == list(other.object_type_qconfigs)
    assert made_by(ours.global_qconfig) == made_by(other.global_qconfig)
    for target, rule in ours.object_type_qconfigs.items():
        assert made_by(rule) == made_by(other.object_type_qconfigs[target])


def test_a_mapping_is_data():
    first, second = (qconfig.get_default_qconfig() for _ in range(2))
    assert first != second
    assert qconfig_equals(first, second)
    assert not qconfig_equals(first, None)
    rules = (
        QConfigMapping()
        .set_global(first)
        .set_object_type(nn.Linear, None)
        .set_module_name_regex("a.*", first)
        .set_module_name("a.b", None)
        .set_module_name_object_type_order("a", nn.Linear, 1, first)
    )
    assert QConfigMapping.from_dict(rules.to_dict()).to_dict() == rules.to_dict()
    assert "module_name_regex_qconfigs" in repr(rules)
    with pytest.raises(ValueError, match="observer instance"):
        QConfig(MinMaxObserver(), MinMaxObserver)
    assert QConfigDynamic(weight=MinMaxObserver).activation is nn.Identity
    with pytest.raises(AssertionError, match="not supported"):
        qconfig.get_default_qconfig("nothing")
    with pytest.raises(AssertionError, match="not supported"):
        qconfig.get_default_qat_qconfig("x86", version=7)


def test_custom_configurations_have_a_dict_form():
    inner = PrepareCustomConfig().set_preserved_attributes(["a"])
    config = (
        PrepareCustomConfig()
        .set_standalone_module_name("m", QConfigMapping(), (1,), inner, BackendConfig("b"))
        .set_standalone_module_class(nn.ReLU, None, (1,), None, None)
        .set_float_to_observed_mapping(nn.Linear, nn.Bilinear)
        .set_non_traceable_module_names(["n"])
        .set_non_traceable_module_classes([nn.GELU])
        .set_input_quantized_indexes([0])
        .set_output_quantized_indexes([1])
    )
    assert PrepareCustomConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    with pytest.raises(ValueError, match="static"):
        config.set_float_to_observed_mapping(nn.Linear, nn.Linear, QuantType.DYNAMIC)
    with pytest.raises(ValueError, match="Expected QConfigMapping"):
        PrepareCustomConfig.from_dict({"standalone_module_name": [("m", 3, (), None, None)]})
    convert = (
        ConvertCustomConfig().set_observed_to_quantized_mapping(nn.Linear, nn.ReLU).set_preserved_attributes(["a"])
    )
    assert ConvertCustomConfig.from_dict(convert.to_dict()).to_dict() == convert.to_dict()
    fuse = FuseCustomConfig().set_preserved_attributes(["a"])
    assert FuseCustomConfig.from_dict(fuse.to_dict()).to_dict() == fuse.to_dict()
    assert "preserved_attributes" in repr(fuse)
    with pytest.raises(ValueError, match="Unknown QuantType"):
        _quant_type_from_str("never")


def test_back_end_configurations_have_a_dict_form():
    dtypes = DTypeConfig(
        torch.quint8, DTypeWithConstraints(torch.quint8, scale_min_lower_bound=2**-12), torch.qint8, torch.float
    )
    assert DTypeConfig.from_dict(dtypes.to_dict()) == dtypes
    assert (dtypes.input_dtype, dtypes.output_dtype, dtypes.weight_dtype) == (torch.quint8, torch.quint8, torch.qint8)
    pattern = (
        BackendPatternConfig((nn.Linear, nn.ReLU))
        .set_observation_type(ObservationType.OUTPUT_SHARE_OBSERVER_WITH_INPUT)
        .add_dtype_config(dtypes)
        .set_root_module(nn.Linear)
        .set_reference_quantized_module(nn.Linear)
        .set_fuser_method(nn.Sequential)
    )
    config = BackendConfig("b").set_backend_pattern_configs([pattern])
    again = BackendConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert again.configs[0].observation_type is ObservationType.OUTPUT_SHARE_OBSERVER_WITH_INPUT
    assert again.configs[0].dtype_configs == [dtypes]
    with pytest.raises(ValueError, match="Only one"):
        pattern._set_pattern_complex_format((nn.ReLU, nn.Linear))
