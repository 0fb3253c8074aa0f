"""Observers: modules that watch values go by, and choose qparams for them."""

from fxquant.observers.base import ObserverBase
from fxquant.observers.defaults import (
    DEFAULT_QCONFIG,
    DEFAULT_QCONFIGS,
    default_dynamic_qconfig,
    default_dynamic_quant_observer,
    default_float_qparams_observer,
    default_float_qparams_observer_4bit,
    default_observer,
    default_per_channel_weight_observer,
    default_per_token_qconfig,
    default_per_token_quant_observer,
    default_placeholder_observer,
    float_qparams_weight_only_qconfig,
    float_qparams_weight_only_qconfig_4bit,
    get_default_qconfig,
    get_default_qconfig_mapping,
    weight_only_qconfig,
)
from fxquant.observers.entropy import EntropyObserver
from fxquant.observers.fixed import (
    FixedQParamsObserver,
    NoopObserver,
    PlaceholderObserver,
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
)
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.minmax import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.observers.moving_average import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
from fxquant.observers.mse import MSEObserver
from fxquant.observers.percentile import PercentileObserver
from fxquant.observers.qparams import choose_qparams

__all__ = [
    "DEFAULT_QCONFIG",
    "DEFAULT_QCONFIGS",
    "EntropyObserver",
    "FixedQParamsObserver",
    "HistogramObserver",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "NoopObserver",
    "ObserverBase",
    "PerChannelMinMaxObserver",
    "PercentileObserver",
    "PlaceholderObserver",
    "choose_qparams",
    "default_dynamic_qconfig",
    "default_dynamic_quant_observer",
    "default_fixed_qparams_range_0to1_observer",
    "default_fixed_qparams_range_neg1to1_observer",
    "default_float_qparams_observer",
    "default_float_qparams_observer_4bit",
    "default_observer",
    "default_per_channel_weight_observer",
    "default_per_token_qconfig",
    "default_per_token_quant_observer",
    "default_placeholder_observer",
    "float_qparams_weight_only_qconfig",
    "float_qparams_weight_only_qconfig_4bit",
    "get_default_qconfig",
    "get_default_qconfig_mapping",
    "weight_only_qconfig",
]
