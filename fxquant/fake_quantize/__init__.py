"""Fake-quantize modules: they simulate integer quantization in float."""

from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize, AdaroundFakeQuantizer
from fxquant.fake_quantize.base import (
    FakeQuantizeBase,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.fake_quantize.defaults import (
    default_affine_fixed_qparams_fake_quant,
    default_dynamic_fake_quant,
    default_embedding_fake_quant,
    default_embedding_fake_quant_4bit,
    default_fake_quant,
    default_fixed_qparams_range_0to1_fake_quant,
    default_fixed_qparams_range_neg1to1_fake_quant,
    default_fused_act_fake_quant,
    default_fused_per_channel_wt_fake_quant,
    default_fused_wt_fake_quant,
    default_histogram_fake_quant,
    default_per_channel_weight_fake_quant,
    default_symmetric_fixed_qparams_fake_quant,
    default_weight_fake_quant,
    fused_per_channel_wt_fake_quant_range_neg_127_to_127,
    fused_wt_fake_quant_range_neg_127_to_127,
)
from fxquant.fake_quantize.fixed import FixedQParamsFakeQuantize
from fxquant.fake_quantize.fused import FusedMovingAvgObsFakeQuantize
from fxquant.fake_quantize.learnable import LearnableFakeQuantize, _LearnableFakeQuantize
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.fake_quantize.weight import WeightFakeQuantize

__all__ = [
    "AdaRoundFakeQuantize",
    "AdaroundFakeQuantizer",
    "FakeQuantize",
    "FakeQuantizeBase",
    "FixedQParamsFakeQuantize",
    "FusedMovingAvgObsFakeQuantize",
    "LearnableFakeQuantize",
    "StaticFakeQuantize",
    "WeightFakeQuantize",
    "_LearnableFakeQuantize",
    "default_affine_fixed_qparams_fake_quant",
    "default_dynamic_fake_quant",
    "default_embedding_fake_quant",
    "default_embedding_fake_quant_4bit",
    "default_fake_quant",
    "default_fixed_qparams_range_0to1_fake_quant",
    "default_fixed_qparams_range_neg1to1_fake_quant",
    "default_fused_act_fake_quant",
    "default_fused_per_channel_wt_fake_quant",
    "default_fused_wt_fake_quant",
    "default_histogram_fake_quant",
    "default_per_channel_weight_fake_quant",
    "default_symmetric_fixed_qparams_fake_quant",
    "default_weight_fake_quant",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "fused_per_channel_wt_fake_quant_range_neg_127_to_127",
    "fused_wt_fake_quant_range_neg_127_to_127",
]
