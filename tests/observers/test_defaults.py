"""What is used where the user names nothing."""

from __future__ import annotations

import pytest
from torch import nn

from fxquant.observers import (
    DEFAULT_QCONFIG,
    DEFAULT_QCONFIGS,
    default_observer,
    default_per_channel_weight_observer,
    float_qparams_weight_only_qconfig,
    float_qparams_weight_only_qconfig_4bit,
    get_default_qconfig,
    get_default_qconfig_mapping,
    weight_only_qconfig,
)
from fxquant.plan.qconfig import QConfig
from fxquant.plan.spec import QScheme


def test_default_grids():
    for backend in ("cpu", "reference", "x86", "onednn", "mine"):
        qconfig = get_default_qconfig(backend)
        assert qconfig.activation_scheme == QScheme(bits=8, signed=False)
        assert qconfig.weight_scheme == QScheme(bits=8, signed=True, symmetric=True, axis=0)
        assert get_default_qconfig_mapping(backend).global_qconfig is qconfig


@pytest.mark.parametrize(
    ("qconfig", "bits"), [(float_qparams_weight_only_qconfig, 8), (float_qparams_weight_only_qconfig_4bit, 4)]
)
def test_tables_of_embeddings(qconfig, bits):
    assert qconfig.activation_scheme is None
    assert qconfig.weight_scheme == QScheme(bits=bits, signed=False, axis=0, float_qparams=True)
    rules = get_default_qconfig_mapping().object_type_qconfigs
    assert rules == dict.fromkeys((nn.Embedding, nn.EmbeddingBag), float_qparams_weight_only_qconfig)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, None), (12, 64)])
def test_weights_alone(bits, group_size):
    qconfig = weight_only_qconfig(bits=bits, group_size=group_size)
    assert qconfig.activation_scheme is None
    assert qconfig.weight_scheme == QScheme(bits=bits, symmetric=True, axis=0, group_size=group_size)
    assert weight_only_qconfig().weight_scheme == QScheme(bits=4, symmetric=True, axis=0, group_size=32)


def test_a_mapping_is_made_anew_each_time():
    get_default_qconfig_mapping().set_module_name("head", None)
    assert get_default_qconfig_mapping().module_name_qconfigs == {}


def test_a_backend_may_have_its_own():
    own = QConfig(default_observer, default_per_channel_weight_observer.with_args(bits=4))
    DEFAULT_QCONFIGS.add("mine", own)
    try:
        assert get_default_qconfig("mine") is own
        assert get_default_qconfig("yours") is DEFAULT_QCONFIG
    finally:
        DEFAULT_QCONFIGS.remove("mine")
