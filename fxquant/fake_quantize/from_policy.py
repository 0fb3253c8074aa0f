"""Builds the fake-quantize module that a policy of the plan asks for."""

from __future__ import annotations

from fxquant.fake_quantize.base import FakeQuantizeBase, observer_in
from fxquant.fake_quantize.fixed import FixedQParamsFakeQuantize
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.observers.fixed import FixedQParamsObserver
from fxquant.plan.spec import Fixed, Observed, QParamsPolicy


def has_given_qparams(policy: QParamsPolicy) -> bool:
    """Tell whether the qparams of a policy were given: what learns integers does not choose them anew."""
    if isinstance(policy, Observed):
        return isinstance(observer_in(policy.observer()), FixedQParamsObserver)
    return isinstance(policy, Fixed)


def fake_quantize_from_policy(policy: QParamsPolicy, place: str) -> FakeQuantizeBase:
    """Return the module that a policy asks for, to round ``place``; an observer gets a ``FakeQuantize`` around it."""
    if isinstance(policy, Fixed):
        scale, zero_point = policy.qparams.scale.item(), policy.qparams.zero_point.item()
        return FixedQParamsFakeQuantize(
            FixedQParamsObserver.with_args(scale=scale, zero_point=zero_point, scheme=policy.qparams.scheme)
        )
    assert isinstance(policy, Observed)  # the caller asked
    made = policy.observer()
    module = made if isinstance(made, FakeQuantizeBase) else FakeQuantize(policy.observer)
    module.place = place
    return module
