"""The default configuration of training."""

from __future__ import annotations

import pickle

from torch import nn

from fxquant.fake_quantize.defaults import get_default_qat_qconfig, get_default_qat_qconfig_mapping
from fxquant.fake_quantize.fused import FusedMovingAvgObsFakeQuantize


def test_grids_are_those_of_the_default_configuration_without_training():
    qconfig = get_default_qat_qconfig()
    assert str(qconfig.activation_scheme) == "uint8 affine per tensor"
    assert str(qconfig.weight_scheme) == "int8 symmetric per channel (axis 0)"
    assert isinstance(qconfig.activation(), FusedMovingAvgObsFakeQuantize)
    assert isinstance(qconfig.weight(), FusedMovingAvgObsFakeQuantize)


def test_embeddings_have_a_rule_of_their_own():
    mapping = get_default_qat_qconfig_mapping("cpu")
    rule = mapping.resolve("table", [nn.Embedding])
    assert rule.qconfig is not None
    assert rule.qconfig.activation_scheme is None
    assert rule.qconfig.weight_scheme.float_qparams
    assert pickle.loads(pickle.dumps(mapping)) == mapping
