"""Chooses the qparams of weights for an exchange: those of weights with batch norms folded in, as in a conversion."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.manager import PassManager
from fxquant.passes.weights import observe_weights
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context


def weight_qparams(prepared: PreparedModel, known: Mapping[TensorRef, QParams]) -> dict[TensorRef, QParams]:
    """Return the qparams of each planned weight.

    Args:
        prepared: It is not changed.
        known: The qparams of activations, and those that weights have already.
    """
    context = pass_context(prepared, prepared.plan.with_observations(known))
    PassManager((fold_conv_bn, observe_weights)).run(copy.deepcopy(prepared.graph_module), context)
    return {ref: found for ref, found in context.plan.qparams.items() if ref.kind == "parameter"}
