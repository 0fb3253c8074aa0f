"""fxquant quantizes PyTorch models by rewriting their torch.fx graphs: calibrated int8, and its exact simulation."""

from fxquant.commandline import VERSION  # isort: skip  # first: it answers --help before torch is imported
from fxquant import fake_quantize, kernels, nn
from fxquant.analysis.compare import compare
from fxquant.analysis.comparison import Comparison, LayerComparison
from fxquant.analysis.profile import profile
from fxquant.analysis.profile_table import Profile, ProfileRow
from fxquant.analysis.sensitivity import sensitivity
from fxquant.analysis.sensitivity_table import Sensitivity, UnitCost
from fxquant.api import calibrate, convert, prepare, quantize
from fxquant.artifact import ArtifactInfo, LoadLimits, inspect_artifact, load, save
from fxquant.backends.base import Backend, Lower, LoweringRule, register_backend
from fxquant.backends.cpu import CPU
from fxquant.backends.onnxruntime import ONNXRUNTIME
from fxquant.backends.openvino import OPENVINO
from fxquant.backends.reference import REFERENCE
from fxquant.backends.tensorrt import TENSORRT
from fxquant.calibration.calibration_report import CalibrationReport
from fxquant.distributed.sharing import share_work
from fxquant.equalization.equalize import equalize
from fxquant.equalization.table import Equalization, EqualizedRegion
from fxquant.errors import FxQuantError, FxQuantWarning
from fxquant.exchange import QParamsTable, TensorQParams, apply_qparams, qparams
from fxquant.exporting import explicit, export, register_explicit
from fxquant.exporting.onnx import OnnxReport, OnnxRow, export_onnx
from fxquant.fake_quantize import (
    AdaRoundFakeQuantize,
    FakeQuantize,
    FakeQuantizeBase,
    FixedQParamsFakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    LearnableFakeQuantize,
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
from fxquant.passes.instruments import print_passes
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
