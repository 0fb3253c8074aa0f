"""The orders in which passes run.

``after`` of a pass names those that must run first, where nothing else would notice a wrong order. ``keeps_values``:
FXQUANT_VERIFY checks that results stay as they are. ``required``: FXQUANT_SKIP_PASSES may not name it.
"""

from __future__ import annotations

from fxquant.passes.annotate import annotate
from fxquant.passes.base import Pass
from fxquant.passes.cleanup import choose_layout, eliminate_dead_code, merge_requantize
from fxquant.passes.computed_tensors import compute_tensors, fold_tensors
from fxquant.passes.correct_bias import correct_bias
from fxquant.passes.decompose import decompose_attention, decompose_composites
from fxquant.passes.drop_idle import drop_idle
from fxquant.passes.fold_constants import fold_constants
from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.functional_to_module import affine_to_norm, functional_to_module
from fxquant.passes.insert_fake_quant import insert_fake_quant, insert_quantize_dequantize
from fxquant.passes.integer_boundaries import integer_boundaries
from fxquant.passes.lower_units import lower_units
from fxquant.passes.normalize import normalize
from fxquant.passes.number_bounds import number_bounds
from fxquant.passes.round_biases import round_biases
from fxquant.passes.scale_channels import scale_channels, scale_clamped_channels
from fxquant.passes.share_qparams import share_join_qparams, share_qparams
from fxquant.passes.specialize_shapes import guard_ranks, specialize_shapes
from fxquant.passes.split_norms import split_norms
from fxquant.passes.training import insert_training_fake_quant, strip_fake_quant
from fxquant.passes.weights import apply_learned_rounding, observe_weights

Pipeline = tuple[Pass, ...]

PREPARE: Pipeline = (
    fold_constants,  # before normalize: it follows in-place changes as the user wrote them
    normalize,  # before all tables: they name each operator once
    number_bounds,  # bounds that are constant tensors become numbers: patterns know clamps between numbers
    decompose_composites,  # before layers are made: products with constant weights are layers
    functional_to_module,  # patterns know layers, not functions that take weights
    affine_to_norm,  # conv(x) * scale + shift becomes a kind of batch norm; such sums follow layers
    specialize_shapes,  # layers say which sizes are always the same
    decompose_attention,  # before the plan is made: it is made of the parts
    drop_idle,  # so that the operators of a pattern are neighbours; the passes before skip no-ops by themselves
    annotate,
    share_qparams,  # needs every unit
    guard_ranks,  # needs every unit, too; last: its guards read values, which would keep patterns from matching
)

EQUALIZE: Pipeline = (
    split_norms,  # factors of regions are for the second norms, too
    scale_channels,
    scale_clamped_channels,  # apart, since scaling through a clamp is exact only for values that calibration has seen
)
"""The passes that ``equalize`` runs on the graph of ``PREPARE``, whose batch norms are not folded."""

BEFORE_LOWERING: Pipeline = (
    fold_conv_bn,
    observe_weights,  # a weight's range is that of the folded weight
    correct_bias,  # before the weight is replaced by what it is rounded to
    share_join_qparams,  # before values are rounded
    round_biases,  # with the final scale of each input, and the corrected bias
)

TO_FAKE_QUANT: Pipeline = (*BEFORE_LOWERING, insert_fake_quant, eliminate_dead_code)

TO_REFERENCE: Pipeline = (*BEFORE_LOWERING, apply_learned_rounding, insert_quantize_dequantize, eliminate_dead_code)

TO_INT8: Pipeline = (
    *BEFORE_LOWERING,
    apply_learned_rounding,  # lowering rounds to the nearest step
    lower_units,
    merge_requantize,  # before the layout: a conversion that is gone needs none
    choose_layout,
    eliminate_dead_code,  # last: lowering leaves float values that nobody reads
)

CONVERT: dict[str, Pipeline] = {"int8": TO_INT8, "fake_quant": TO_FAKE_QUANT, "reference": TO_REFERENCE}
"""Argument ``to`` of ``convert`` -> the passes that it runs."""


def passes_for(to: str, *, integers: bool) -> Pipeline:
    """Return the passes of ``convert(..., to=to)``.

    Args:
        to: A key of ``CONVERT``.
        integers: Whether the model takes or returns quantized values. The simulation takes and returns floats all the
            same.
    """
    if not integers or to == "fake_quant":
        return CONVERT[to]
    return (*CONVERT[to], integer_boundaries)  # last: FXQUANT_VERIFY runs the float example through all others


TO_TRAINING: Pipeline = (insert_training_fake_quant, compute_tensors)
"""The passes that ``prepare_qat`` runs after ``PREPARE``: nothing is folded, since batch norms go on learning."""

FROM_TRAINING: Pipeline = (strip_fake_quant, fold_tensors)
"""The passes that ``convert`` runs first on a model that was trained."""
