"""Makes of a model with observers what converts: the float graph, and the qparams that the observers choose."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from fxquant.compat.foreign import as_qparams
from fxquant.compat.observed_graph import InsideObserver
from fxquant.compat.range_qparams import warn_unseen
from fxquant.errors import CalibrationError
from fxquant.graph.module import METADATA, get_metadata
from fxquant.graph.query import move_to_device_of
from fxquant.observers.fixed import FixedQParamsObserver
from fxquant.passes.pipelines import FROM_TRAINING
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.run_passes import run_passes
from fxquant.training.trained import quantizer_of


def quantizer_from(observed: GraphModule) -> Quantizer:
    """Make of an observed model what converts: its graph without observers, and the qparams that these choose now.

    ``observed`` is not changed. A value that was never seen gets scale 1 and zero point 0, with a warning.
    """
    preparation: Any = get_metadata(observed, "preparation")
    if preparation.trains:
        quantizer = quantizer_of(observed, allow_uncalibrated=True)
        quantizer.trained = dict(_without_nan(quantizer.trained or {}))
        return quantizer
    quantizer = copy.copy(preparation)
    plan = quantizer.plan
    quantizer.trained = {
        ref: qparams_in(observed.get_submodule(path))
        for ref, path in plan.fake_quants.items()
        if plan.qparams_owner(ref) == ref
    }
    plain = copy.deepcopy(observed).eval()
    done = run_passes(quantizer, FROM_TRAINING, plain, plan)
    quantizer.graph_module, quantizer.snapshots = done.graph_module, done.snapshots
    for path in plan.fake_quants.values():
        quantizer.graph_module.delete_submodule(path)
    del vars(quantizer.graph_module)[METADATA]
    move_to_device_of(quantizer.observers, quantizer.graph_module)
    return quantizer


def qparams_in(module: Any) -> QParams:
    """Return the qparams of an observer or a fake-quantize module: those in use, or those that it chooses now."""
    if isinstance(module, InsideObserver):
        return qparams_in(module.inner)
    if isinstance(module, FixedQParamsObserver):
        return module.qparams()
    try:
        return as_qparams(module, module.scheme)
    except CalibrationError:
        warn_unseen()
        return _default(module.scheme)


def _default(scheme: Any) -> QParams:
    return QParams(scheme, torch.ones(1), torch.zeros(1, dtype=torch.int32))


def _without_nan(trained: Mapping[TensorRef, QParams]) -> Iterator[tuple[TensorRef, QParams]]:
    for ref, qparams in trained.items():
        if bool(qparams.scale.isnan().any()):
            warn_unseen()
            yield ref, _default(qparams.scheme)
        else:
            yield ref, qparams
