"""Refuses arguments of ``search_precision`` that make no sense."""

from __future__ import annotations

from fxquant.analysis.metrics import check_metric
from fxquant.errors import InputError, UnknownNameError
from fxquant.graph.inputs import describe_value
from fxquant.plan.spec import is_number
from fxquant.precision.budget import Budget
from fxquant.quantizer.checks import check_seed
from fxquant.quantizer.learned import refuse_learned
from fxquant.registry import did_you_mean

ESTIMATES = ("alone", "gradient")


def check_arguments(
    prepared: object,
    *,
    budget: object,
    max_drop: object,
    metric: object,
    against: object,
    estimate: object,
    confidence: object,
    seed: object,
) -> None:
    """Refuse arguments that make no sense, in the order in which users write them."""
    refuse_learned(
        prepared,
        "search_precision",
        takes=("prepare", "calibrate"),
        fits="other bits",
        hint="search first, and learn roundings of what prepare makes of the mapping",
        or_planned=True,
    )
    if (budget is None) == (max_drop is None):
        raise InputError(
            "exactly one of budget and max_drop is given",
            got="neither" if budget is None else "both",
            expected="budget=Budget(size=0.5), or max_drop=0.5 with a metric",
            hint="the whole front is in .pareto, whichever is given",
        )
    if budget is not None and not isinstance(budget, Budget):
        raise InputError("budget is no Budget", got=describe_value(budget), expected="Budget(size=0.5), for example")
    if max_drop is not None and (not is_number(max_drop) or not 0 <= max_drop < float("inf")):  # type: ignore[operator]
        raise InputError("max_drop is out of range", got=repr(max_drop), expected="a number from 0 on")
    check_metric(metric, against)
    if max_drop is not None and metric is None:
        raise InputError(
            "max_drop needs a metric, which says what may drop",
            got="metric=None",
            hint="metric=lambda output, target: 100 * (output.argmax(1) == target).float().mean(), against='target'",
        )
    if estimate not in ESTIMATES:
        hint = did_you_mean(str(estimate), ESTIMATES)
        raise UnknownNameError(
            "unknown way to estimate noise", got=repr(estimate), expected=", ".join(ESTIMATES), hint=hint
        )
    if not is_number(confidence) or not 0 < confidence < 1:  # type: ignore[operator]  # it is a number
        raise InputError("confidence is out of range", got=repr(confidence), expected="a number between 0 and 1")
    check_seed(seed)
