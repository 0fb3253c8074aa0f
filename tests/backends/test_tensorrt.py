"""What is planned for TensorRT: int8 with zero point 0, and biases in float."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from tests.backends.test_onnxruntime import Residual, X


def test_the_default_is_symmetric_int8():
    model = nn.Sequential(Residual(), nn.Conv2d(4, 4, 1)).eval()
    prepared = fxq.prepare(model, X, backend="tensorrt").calibrate([X], progress=False)
    assert [unit.pattern for unit in prepared.plan.units] == ["conv_act", "conv_add_act", "conv"]
    plan = fxq.convert(prepared, to="reference").quant_plan
    assert {(q.scheme.dtype, int(q.zero_point.abs().max())) for q in plan.qparams.values()} == {(torch.int8, 0)}


def test_other_integers_are_refused_with_the_reason():
    linear = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).eval()
    mapping = fxq.get_default_qconfig_mapping("tensorrt").set_module_name("1", fxq.get_default_qconfig("cpu"))
    rejection = fxq.prepare(linear, X, mapping, backend="tensorrt").plan.rejections[0]
    assert "must be int8 with zero point 0" in rejection.reason
    narrow = fxq.get_default_qconfig("tensorrt").activation.with_args(quant_min=-64, quant_max=63)
    mapping.set_module_name("1", fxq.QConfig(narrow, fxq.get_default_qconfig("tensorrt").weight))
    rejection = fxq.prepare(linear, X, mapping, backend="tensorrt").plan.rejections[0]
    assert "int8 with all of its values" in rejection.reason
