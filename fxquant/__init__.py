"""fxquant quantizes PyTorch models by rewriting their torch.fx graphs: calibrated int8, and its exact simulation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fxquant.commandline import VERSION  # isort: skip  # first: it answers --help before torch is imported
from fxquant import fake_quantize, kernels, nn
from fxquant.backends.base import Backend, Lower, LoweringRule, register_backend
from fxquant.backends.cpu import CPU
from fxquant.backends.onnxruntime import ONNXRUNTIME
from fxquant.backends.openvino import OPENVINO
from fxquant.backends.reference import REFERENCE
from fxquant.backends.tensorrt import TENSORRT
from fxquant.errors import FxQuantError, FxQuantWarning
from fxquant.fake_quantize import (
    AdaRoundFakeQuantize,
    FakeQuantize,
    FakeQuantizeBase,
    FixedQParamsFakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    LearnableFakeQuantize,
    WeightFakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)
from fxquant.fake_quantize.defaults import (
    get_default_qat_qconfig,
    get_default_qat_qconfig_mapping,
    get_lsq_qconfig,
)
from fxquant.fake_quantize.learnable import enable_param_learning, enable_static_estimate
from fxquant.nn.training import freeze_bn_stats, update_bn_stats
from fxquant.observers import (
    EntropyObserver,
    FixedQParamsObserver,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    MSEObserver,
    NoopObserver,
    PercentileObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
)
from fxquant.observers.defaults import (
    default_dynamic_qconfig,
    default_per_token_qconfig,
    float_qparams_weight_only_qconfig,
    float_qparams_weight_only_qconfig_4bit,
    get_default_qconfig,
    get_default_qconfig_mapping,
    weight_only_qconfig,
)
from fxquant.observers.low_bit import low_bit_qconfig
from fxquant.patterns import (
    DEFAULT_PATTERNS,
    Output,
    Pattern,
    Reject,
    UnitView,
    op,
    register_pattern,
    tensor,
    tensors,
    unregister_pattern,
)
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal, Rejection
from fxquant.plan.spec import Clamp, QParams, QScheme, TensorRef

if TYPE_CHECKING:  # where a program runs, each is imported when it is first asked for: LATER, below
    from fxquant.analysis.compare import compare
    from fxquant.analysis.comparison import Comparison, LayerComparison
    from fxquant.analysis.profile import profile
    from fxquant.analysis.profile_table import Profile, ProfileRow
    from fxquant.analysis.sensitivity import sensitivity
    from fxquant.analysis.sensitivity_table import Sensitivity, UnitCost
    from fxquant.api import calibrate, convert, prepare, quantize
    from fxquant.artifact.format import LoadLimits
    from fxquant.artifact.inspect import ArtifactInfo, inspect_artifact
    from fxquant.artifact.load import load
    from fxquant.artifact.save import save
    from fxquant.calibration.calibration_report import CalibrationReport
    from fxquant.distributed.sharing import share_work
    from fxquant.equalization.equalize import equalize
    from fxquant.equalization.table import Equalization, EqualizedRegion
    from fxquant.exchange.apply import apply_qparams
    from fxquant.exchange.collect import qparams
    from fxquant.exchange.table import QParamsTable, TensorQParams
    from fxquant.exporting.explicit import explicit
    from fxquant.exporting.onnx.export import export_onnx
    from fxquant.exporting.onnx.report import OnnxReport, OnnxRow
    from fxquant.exporting.program import export
    from fxquant.exporting.table import register_explicit
    from fxquant.passes.instruments import print_passes
    from fxquant.precision.budget import Budget
    from fxquant.precision.search_precision import search_precision
    from fxquant.precision.table import PrecisionPoint, PrecisionRow, PrecisionSearch
    from fxquant.quantizer.distributed import synchronize_observers
    from fxquant.quantizer.quantizer import Quantizer
    from fxquant.reporting.report import report
    from fxquant.training.batch_norm_statistics import reestimate_batch_norm
    from fxquant.training.block_reconstruction import reconstruct
    from fxquant.training.block_table import LearnedBlock, LearnedBlocks
    from fxquant.training.correct_statistics import correct_statistics
    from fxquant.training.corrected_layers import CorrectedLayer, CorrectedLayers
    from fxquant.training.gptq import gptq
    from fxquant.training.learned_rounding import adaround
    from fxquant.training.qat import prepare_qat
    from fxquant.training.rounded_layers import RoundedLayer, RoundedLayers
    from fxquant.training.schedule import TrainingSchedule, scale_parameters

__version__ = VERSION

__all__ = [
    "CPU",
    "DEFAULT_PATTERNS",
    "ONNXRUNTIME",
    "OPENVINO",
    "REFERENCE",
    "TENSORRT",
    "AdaRoundFakeQuantize",
    "ArtifactInfo",
    "Backend",
    "Budget",
    "CalibrationReport",
    "Clamp",
    "Comparison",
    "CorrectedLayer",
    "CorrectedLayers",
    "EntropyObserver",
    "Equalization",
    "EqualizedRegion",
    "FakeQuantize",
    "FakeQuantizeBase",
    "FixedQParamsFakeQuantize",
    "FixedQParamsObserver",
    "FusedMovingAvgObsFakeQuantize",
    "FxQuantError",
    "FxQuantWarning",
    "HistogramObserver",
    "LayerComparison",
    "LearnableFakeQuantize",
    "LearnedBlock",
    "LearnedBlocks",
    "LoadLimits",
    "Lower",
    "LoweringRule",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "NoopObserver",
    "OnnxReport",
    "OnnxRow",
    "Output",
    "Pattern",
    "PerChannelMinMaxObserver",
    "PercentileObserver",
    "PlaceholderObserver",
    "PrecisionPoint",
    "PrecisionRow",
    "PrecisionSearch",
    "Profile",
    "ProfileRow",
    "QConfig",
    "QConfigMapping",
    "QParams",
    "QParamsTable",
    "QScheme",
    "QuantPlan",
    "QuantUnit",
    "Quantizer",
    "Refusal",
    "Reject",
    "Rejection",
    "RoundedLayer",
    "RoundedLayers",
    "Sensitivity",
    "TensorQParams",
    "TensorRef",
    "TrainingSchedule",
    "UnitCost",
    "UnitView",
    "WeightFakeQuantize",
    "adaround",
    "apply_qparams",
    "calibrate",
    "compare",
    "convert",
    "correct_statistics",
    "default_dynamic_qconfig",
    "default_per_token_qconfig",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "enable_param_learning",
    "enable_static_estimate",
    "equalize",
    "explicit",
    "export",
    "export_onnx",
    "fake_quantize",
    "float_qparams_weight_only_qconfig",
    "float_qparams_weight_only_qconfig_4bit",
    "freeze_bn_stats",
    "get_default_qat_qconfig",
    "get_default_qat_qconfig_mapping",
    "get_default_qconfig",
    "get_default_qconfig_mapping",
    "get_lsq_qconfig",
    "gptq",
    "inspect_artifact",
    "kernels",
    "load",
    "low_bit_qconfig",
    "nn",
    "op",
    "prepare",
    "prepare_qat",
    "print_passes",
    "profile",
    "qparams",
    "quantize",
    "reconstruct",
    "reestimate_batch_norm",
    "register_backend",
    "register_explicit",
    "register_pattern",
    "report",
    "save",
    "scale_parameters",
    "search_precision",
    "sensitivity",
    "share_work",
    "synchronize_observers",
    "tensor",
    "tensors",
    "unregister_pattern",
    "update_bn_stats",
    "weight_only_qconfig",
]

LATER = {
    "fxquant.analysis.compare": ("compare",),
    "fxquant.analysis.comparison": ("Comparison", "LayerComparison"),
    "fxquant.analysis.profile": ("profile",),
    "fxquant.analysis.profile_table": ("Profile", "ProfileRow"),
    "fxquant.analysis.sensitivity": ("sensitivity",),
    "fxquant.analysis.sensitivity_table": ("Sensitivity", "UnitCost"),
    "fxquant.api": ("calibrate", "convert", "prepare", "quantize"),
    "fxquant.artifact.format": ("LoadLimits",),
    "fxquant.artifact.inspect": ("ArtifactInfo", "inspect_artifact"),
    "fxquant.artifact.load": ("load",),
    "fxquant.artifact.save": ("save",),
    "fxquant.calibration.calibration_report": ("CalibrationReport",),
    "fxquant.distributed.sharing": ("share_work",),
    "fxquant.equalization.equalize": ("equalize",),
    "fxquant.equalization.table": ("Equalization", "EqualizedRegion"),
    "fxquant.exchange.apply": ("apply_qparams",),
    "fxquant.exchange.collect": ("qparams",),
    "fxquant.exchange.table": ("QParamsTable", "TensorQParams"),
    "fxquant.exporting.explicit": ("explicit",),
    "fxquant.exporting.onnx.export": ("export_onnx",),
    "fxquant.exporting.onnx.report": ("OnnxReport", "OnnxRow"),
    "fxquant.exporting.program": ("export",),
    "fxquant.exporting.table": ("register_explicit",),
    "fxquant.passes.instruments": ("print_passes",),
    "fxquant.precision.budget": ("Budget",),
    "fxquant.precision.search_precision": ("search_precision",),
    "fxquant.precision.table": ("PrecisionPoint", "PrecisionRow", "PrecisionSearch"),
    "fxquant.quantizer.distributed": ("synchronize_observers",),
    "fxquant.quantizer.quantizer": ("Quantizer",),
    "fxquant.reporting.report": ("report",),
    "fxquant.training.batch_norm_statistics": ("reestimate_batch_norm",),
    "fxquant.training.block_reconstruction": ("reconstruct",),
    "fxquant.training.block_table": ("LearnedBlock", "LearnedBlocks"),
    "fxquant.training.correct_statistics": ("correct_statistics",),
    "fxquant.training.corrected_layers": ("CorrectedLayer", "CorrectedLayers"),
    "fxquant.training.gptq": ("gptq",),
    "fxquant.training.learned_rounding": ("adaround",),
    "fxquant.training.qat": ("prepare_qat",),
    "fxquant.training.rounded_layers": ("RoundedLayer", "RoundedLayers"),
    "fxquant.training.schedule": ("TrainingSchedule", "scale_parameters"),
}
"""Module -> the public names that it has. Each is imported when it is first asked for: a program uses few of them (one
that loads a file quantizes nothing), and together they took half of the time of ``import fxquant``."""

_HOMES = {name: module for module, names in LATER.items() for name in names}
_ROOMS = {"measure", "runtime"} | {module.split(".")[1] for module in LATER}
"""Packages that are attributes of this one before anything has imported them."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f"fxquant.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
