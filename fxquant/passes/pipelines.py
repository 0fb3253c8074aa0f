"""The orders in which passes run. What must come before what stands in each pass's ``after``."""

from __future__ import annotations

from fxquant.passes.annotate import annotate
from fxquant.passes.apply_learned_rounding import apply_learned_rounding
from fxquant.passes.base import Pass
from fxquant.passes.choose_layout import choose_layout
from fxquant.passes.compute_tensors import compute_tensors
from fxquant.passes.correct_bias import correct_bias
from fxquant.passes.decompose_attention import decompose_attention
from fxquant.passes.decompose_compounds import decompose_compounds
from fxquant.passes.drop_idle import drop_idle
from fxquant.passes.eliminate_dead_code import eliminate_dead_code
from fxquant.passes.fold_constants import fold_constants
from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.fold_tensors import fold_tensors
from fxquant.passes.functional_to_module import functional_to_module
from fxquant.passes.guard_ranks import guard_ranks
from fxquant.passes.insert_fake_quant import insert_fake_quant
from fxquant.passes.insert_quantize_dequantize import insert_quantize_dequantize
from fxquant.passes.insert_training_fake_quant import insert_training_fake_quant
from fxquant.passes.lower_units import lower_units
from fxquant.passes.make_norms import make_norms
from fxquant.passes.merge_requantize import merge_requantize
from fxquant.passes.normalize import normalize
from fxquant.passes.observe_weights import observe_weights
from fxquant.passes.share_join_qparams import share_join_qparams
from fxquant.passes.share_qparams import share_qparams
from fxquant.passes.specialize_shapes import specialize_shapes
from fxquant.passes.strip_fake_quant import strip_fake_quant

Pipeline = tuple[Pass, ...]

PREPARE: Pipeline = (
    fold_constants,  # what is changed in place is hard to read once normalize has kept it so
    normalize,  # before all tables: they name each operator once
    decompose_compounds,  # before layers are made: products with constant weights are layers
    functional_to_module,  # patterns know layers, not functions that take weights
    make_norms,  # they stand behind layers
    specialize_shapes,  # layers say which sizes are always the same
    decompose_attention,  # before the plan is made: it is made of the parts
    drop_idle,  # patterns know operators that stand side by side; all passes before read through what is idle
    annotate,
    share_qparams,  # needs every unit
    guard_ranks,  # the same; last, since nothing but the unit may read what it guards before
)

FOLD: Pipeline = (
    fold_conv_bn,
    observe_weights,  # a weight's range is that of the folded weight
    correct_bias,  # before the weight is replaced by what it is rounded to
    share_join_qparams,  # before values are rounded
)

TO_FAKE_QUANT: Pipeline = (*FOLD, insert_fake_quant, eliminate_dead_code)

TO_REFERENCE: Pipeline = (*FOLD, apply_learned_rounding, insert_quantize_dequantize, eliminate_dead_code)

TO_INT8: Pipeline = (
    *FOLD,
    apply_learned_rounding,  # lowering rounds to the nearest step
    lower_units,
    merge_requantize,  # before the layout: a conversion that is gone needs none
    choose_layout,
    eliminate_dead_code,  # last: lowering leaves float values that nobody reads
)

CONVERT: dict[str, Pipeline] = {"int8": TO_INT8, "fake_quant": TO_FAKE_QUANT, "reference": TO_REFERENCE}
"""What ``convert(..., to=...)`` runs."""

TO_TRAINING: Pipeline = (insert_training_fake_quant, compute_tensors)
"""What ``prepare_qat`` runs behind ``PREPARE``: nothing is folded, since batch norms go on learning."""

FROM_TRAINING: Pipeline = (strip_fake_quant, fold_tensors)
"""What ``convert`` runs first on a model that was trained."""
