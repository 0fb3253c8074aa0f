"""Reads the qparams of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.exchange.given import Means
from fxquant.exchange.rows import rows_of
from fxquant.exchange.table import QParamsTable
from fxquant.exchange.weight_qparams import weight_qparams
from fxquant.graph.module import get_metadata
from fxquant.observers.channel_means import ChannelMeans
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Handled
from fxquant.quantizer.checks import not_prepared
from fxquant.quantizer.final_plan import qparams_in_use
from fxquant.quantizer.quantizer import Quantizer
from fxquant.training.trained import quantizer_of


def qparams(model: Quantizer | nn.Module) -> QParamsTable:
    """Read the qparams of a model, as a table that can be saved, edited, and applied again.

    Args:
        model: What ``prepare`` gave, calibrated; what ``prepare_qat`` gave; or what ``convert`` or ``load`` gave. Only
            the table of a prepared model says what decides which joins stay float, and holds the means by which biases
            are corrected: applied, it gives the same bits. Not changed.

    Returns:
        A row for each set of qparams, with all tensors that share them.

    Raises:
        InputError: it is none of these.
        CalibrationError: a value was never observed.
    """
    plan = get_metadata(model, "quant_plan")
    if isinstance(model, Quantizer):
        return _of_prepared(model)
    if isinstance(plan, QuantPlan) and get_metadata(model, "preparation") is not None and isinstance(model, nn.Module):
        return _of_prepared(quantizer_of(model))
    if isinstance(plan, QuantPlan) and isinstance(model, GraphModule):
        return QParamsTable(tuple(rows_of(plan, plan.qparams, model)))
    raise not_prepared(model, "qparams", or_training=True)


def _of_prepared(prepared: Quantizer) -> QParamsTable:
    known = qparams_in_use(prepared, allow_uncalibrated=False)
    weights = weight_qparams(prepared, known)
    by_handlers = {ref for ref, policy in prepared.plan.policies.items() if isinstance(policy, Handled)}
    own = {ref: found for ref, found in known.items() if ref not in by_handlers}
    ends = {name: extremes.ends.tolist() for name, extremes in _extremes(prepared)}
    observers: Mapping[str, Any] = prepared.observers._modules
    used = {ref.name for ref in prepared.plan.policies if ref.kind == "mean"}
    means = {name: module for name, module in observers.items() if isinstance(module, ChannelMeans) and name in used}
    return QParamsTable(
        tuple(rows_of(prepared.plan, {**own, **weights}, prepared.graph_module)),
        joined={name: (low, high) for name, (low, high) in ends.items() if low <= high},
        means={
            name: Means(tuple(module.total.tolist()), int(module.count))
            for name, module in means.items()
            if module.total.numel()
        },
    )


def _extremes(prepared: Quantizer) -> list[tuple[str, Any]]:
    return list(prepared.calibration_statistics.joined._modules.items())
