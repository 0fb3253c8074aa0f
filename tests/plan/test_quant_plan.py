from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
import torch

import fxquant as fxq
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal
from fxquant.plan.spec import Handled, Observed, QParams, QScheme, SharedWith, TensorRef

X, CONV, POOL, FLAT, FC = (TensorRef(name) for name in ("x", "conv", "pool", "flat", "fc"))
WEIGHT, FC_WEIGHT = TensorRef("conv.weight@relu", "parameter"), TensorRef("fc.weight@fc", "parameter")
RELU = TensorRef("relu")
OBSERVED = Observed(dict)


def unit(pattern: str, nodes: str, x: TensorRef, weight: TensorRef | None = None) -> QuantUnit:
    names = tuple(nodes.split())
    roles = {"x": x, "y": TensorRef(names[-1]), **({} if weight is None else {"weight": weight})}
    return QuantUnit(pattern, names, {"x": x.name}, ("x",), roles)


def qparams(scale: float) -> QParams:
    return QParams(QScheme(signed=False), torch.tensor([scale]), torch.zeros(1, dtype=torch.int32))


UNITS = (
    unit("conv_act", "conv relu", X, WEIGHT),
    unit("max_pool2d", "pool", RELU),
    unit("flatten", "flat", POOL),
    unit("linear", "fc", FLAT, FC_WEIGHT),
)
PLAN = QuantPlan(
    units=UNITS,
    policies={
        X: OBSERVED,
        WEIGHT: OBSERVED,
        RELU: OBSERVED,
        POOL: SharedWith(RELU),
        FLAT: SharedWith(POOL),
        FC: OBSERVED,
        FC_WEIGHT: OBSERVED,
    },
    refusals=(Refusal("softmax", "", "no pattern knows this operator"),),
)
MEASURED = {X: qparams(0.1), RELU: qparams(0.2), FC: qparams(0.3)}


def test_the_root_is_the_last_node():
    assert [unit.root for unit in UNITS] == ["relu", "pool", "flat", "fc"]


def test_every_node_of_a_unit_leads_to_it():
    assert PLAN.unit_of() == {"conv": UNITS[0], "relu": UNITS[0], "pool": UNITS[1], "flat": UNITS[2], "fc": UNITS[3]}


@pytest.mark.parametrize(("ref", "owner"), [(X, X), (RELU, RELU), (POOL, RELU), (FLAT, RELU), (FC, FC)])
def test_a_shared_grid_is_followed_to_its_owner(ref, owner):
    assert PLAN.qparams_owner(ref) == owner


def test_observations_make_a_new_plan():
    observed = PLAN.with_observations(MEASURED)
    assert PLAN.qparams == {}
    assert observed.qparams == {
        X: MEASURED[X],
        RELU: MEASURED[RELU],
        POOL: MEASURED[RELU],
        FLAT: MEASURED[RELU],
        FC: MEASURED[FC],
    }
    assert (observed.units, observed.policies, observed.refusals) == (PLAN.units, PLAN.policies, PLAN.refusals)


def test_qparams_stand_in_the_order_of_the_units():
    # Modules are made in this order. A set would give another one in each process.
    values = [TensorRef(f"value{index}") for index in range(40)]
    units = tuple(QuantUnit("relu", (y.name,), {"x": x.name}, ("x",), {"x": x, "y": y}) for x, y in pairwise(values))
    plan = QuantPlan(units=units, policies=dict.fromkeys(reversed(values), OBSERVED))

    observed = plan.with_observations({value: qparams(1.0) for value in sorted(values, key=str, reverse=True)})

    assert list(observed.qparams) == values


def test_a_refused_unit_leaves_with_the_grids_that_only_it_needed():
    refused = Refusal("fc", "linear", "its input is a number")
    observed = PLAN.with_observations(MEASURED, [refused])
    assert observed.units == UNITS[:3]
    assert set(observed.policies) == {X, WEIGHT, RELU, POOL, FLAT}
    assert set(observed.qparams) == {X, RELU, POOL, FLAT}
    assert observed.refusals == (*PLAN.refusals, refused)


def test_what_a_kept_unit_reads_keeps_its_grid():
    observed = PLAN.with_observations(MEASURED, [Refusal("relu", "conv_act", "declined")])
    assert observed.units == UNITS[1:]
    assert X not in observed.policies
    assert observed.qparams[RELU] is MEASURED[RELU]
    assert observed.qparams_owner(FLAT) == RELU


def test_every_link_to_a_shared_grid_is_kept():
    """Only the linear layer stays: what it reads shares a grid through a tensor that no unit holds any more."""
    observed = PLAN.with_observations(MEASURED, [Refusal(root, "", "declined") for root in ("relu", "pool", "flat")])
    assert observed.units == UNITS[3:]
    assert observed.qparams_owner(FLAT) == RELU
    assert set(observed.policies) == {FLAT, POOL, RELU, FC, FC_WEIGHT}
    assert observed.qparams == {FLAT: MEASURED[RELU], FC: MEASURED[FC]}


def test_an_unmeasured_grid_is_no_error_yet():
    assert PLAN.with_observations({X: MEASURED[X]}).qparams == {X: MEASURED[X]}


def test_a_role_without_policy_is_left_alone():
    handled = QuantPlan(units=(UNITS[0],), policies={X: OBSERVED, RELU: Handled()})  # the handler keeps its weight
    assert set(handled.with_observations({X: qparams(1.0)}).policies) == {X, RELU}


def test_observing_again_adds_nothing():
    once = PLAN.with_observations(MEASURED)
    assert once.with_observations(MEASURED) == once


def test_plans_are_compared_by_what_they_hold():
    assert QuantPlan(UNITS, PLAN.policies, PLAN.refusals) == PLAN
    assert QuantPlan(UNITS[:2]) != QuantPlan(UNITS)
    assert Refusal("a", "add", "alpha=2") != Refusal("a", "add", "alpha=2", excused=True)


def test_plans_travel_and_do_not_change():
    assert pickle.loads(pickle.dumps(PLAN)) == PLAN
    with pytest.raises(FrozenInstanceError):
        PLAN.units = ()  # type: ignore[misc]


def test_a_plan_can_be_read():
    assert "QuantUnit(pattern='conv_act', nodes=('conv', 'relu')" in repr(PLAN)


def test_former_names_stay():
    assert fxq.Rejection is fxq.Refusal is Refusal
    assert PLAN.rejections is PLAN.refusals
