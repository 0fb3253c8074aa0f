"""What a training loop calls."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fxq
from fxquant.fake_quantize import default_fused_act_fake_quant


def test_scale_parameters_are_those_of_learnable_modules():
    weight = fxq.LearnableFakeQuantize.with_args(
        observer=fxq.MinMaxObserver, quant_min=-8, quant_max=7, dtype=torch.int8, qscheme="per_tensor_symmetric"
    )
    qconfig = fxq.QConfig(activation=default_fused_act_fake_quant, weight=weight)
    qat = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 3)).train(), torch.randn(2, 4), qconfig)
    fake_quant = qat.get_submodule("0").weight_fake_quant
    assert list(fxq.scale_parameters(qat)) == [fake_quant.scale, fake_quant.zero_point]
