"""The plan of a model as plain data, and back: its units, what was refused, its qparams and the coverage."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from fxquant.artifact.configuration import maker_at
from fxquant.artifact.makers import Maker, Makers
from fxquant.artifact.values import decode, encode, fits
from fxquant.errors import ArtifactError
from fxquant.measure.coverage import Coverage, CoverageRow
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal
from fxquant.plan.spec import Fixed, Handled, Observed, QParams, QParamsPolicy, QScheme, SharedWith, TensorRef

PREFIX = "#plan/"
"""What the names of tensors of a plan begin with: no name in a model does."""


def is_of_plan(name: str) -> bool:
    """Tell whether a tensor of a file belongs to a plan: the model's, or that of a graph inside."""
    return name.startswith("#") and PREFIX in name


_HINTS: dict[type, dict[str, Any]] = {kind: typing.get_type_hints(kind) for kind in (QuantUnit, Refusal, CoverageRow)}


def encode_plan(plan: QuantPlan, makers: Makers | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write a plan.

    Args:
        plan: Of a converted model, or, with ``makers``, of a prepared one.
        makers: They number the observers. None: no observer is written; where one measured, the qparams stand.

    Returns:
        Plain data, and tensors by name.
    """
    data: dict[str, Any] = {"units": [_record(unit) for unit in plan.units]}
    data["rejections"] = [_record(refusal) for refusal in plan.refusals]
    if makers is None:
        known = {plan.qparams_owner(ref): qparams for ref, qparams in plan.qparams.items() if ref in plan.policies}
    else:
        known = {ref: policy.qparams for ref, policy in plan.policies.items() if isinstance(policy, Fixed)}
    held = known | dict(plan.qparams)
    places = {ref: index for index, ref in enumerate(held)}
    data["qparams"] = [[encode(ref), encode(qparams.scheme), ref in plan.qparams] for ref, qparams in held.items()]
    tensors = {}
    for index, qparams in enumerate(held.values()):
        tensors[f"{PREFIX}{index}.scale"] = qparams.scale
        tensors[f"{PREFIX}{index}.zero_point"] = qparams.zero_point
    data["policies"] = [[encode(ref), _policy(ref, policy, places, makers)] for ref, policy in plan.policies.items()]
    return data, tensors


def _policy(ref: TensorRef, policy: QParamsPolicy, places: Mapping[TensorRef, int], makers: Makers | None) -> Any:
    if isinstance(policy, Observed) and makers is not None:
        return {"observed": makers.number_of(policy.observer)}
    if isinstance(policy, (Observed, Fixed)):
        return {"fixed": places[ref]} if ref in places else encode(Handled())
    return encode(policy)


def decode_plan(data: Any, tensors: Mapping[str, Tensor], nodes: int, makers: list[Maker] | None = None) -> QuantPlan:
    """Make a plan. Of a converted model, values that were observed have fixed qparams in it.

    Args:
        data: What ``encode_plan`` wrote.
        tensors: Of the file.
        nodes: How many units and refusals there may be at most, and how many tensors.
        makers: Of observers, by their numbers, where the plan is that of a prepared model.

    Raises:
        ArtifactError: it is no plan.
    """
    if not isinstance(data, dict) or set(data) != {"units", "rejections", "qparams", "policies"}:
        raise ArtifactError("the file holds a plan with other fields")
    if not all(isinstance(item, list) and len(item) <= nodes for item in data.values()):
        raise ArtifactError("the file holds a plan of more than its nodes")
    # The qparams: those that a fixed policy has, and those of tensors.
    held, own = [], {}
    for index, (ref, scheme, is_own) in enumerate(_tuples(data["qparams"], 3)):
        parts = (tensors.get(f"{PREFIX}{index}.{part}") for part in ("scale", "zero_point"))
        scale, zero_point = parts
        scheme, ref = decode(scheme), decode(ref)
        if not isinstance(scheme, QScheme) or not isinstance(ref, TensorRef) or scale is None or zero_point is None:
            raise ArtifactError("the file holds qparams of nothing")
        held.append(QParams(scheme, scale, zero_point))
        if is_own is True:
            own[ref] = held[-1]
    # The policy of each tensor.
    policies: dict[TensorRef, Any] = {}
    for ref, policy in _tuples(data["policies"], 2):
        key = decode(ref)
        if not isinstance(key, TensorRef):
            raise ArtifactError("the file holds a policy of nothing")
        if isinstance(policy, dict) and set(policy) == {"fixed"} and fits(policy["fixed"], int):
            if not 0 <= policy["fixed"] < len(held):
                raise ArtifactError("the file holds a policy without qparams")
            policies[key] = Fixed(held[policy["fixed"]])
        elif isinstance(policy, dict) and set(policy) == {"observed"}:
            policies[key] = Observed(maker_at(makers or [], policy["observed"]))
        else:
            policies[key] = decode(policy)
        if not fits(policies[key], QParamsPolicy):
            raise ArtifactError("the file holds a policy of no kind")
    _check_sharing(policies)
    return QuantPlan(
        units=tuple(_read(QuantUnit, item) for item in data["units"]),
        refusals=tuple(_read(Refusal, item) for item in data["rejections"]),
        policies=policies,
        qparams=own,
    )


def _check_sharing(policies: Mapping[TensorRef, Any]) -> None:
    """Refuse tensors that share the qparams of none, or in a circle."""
    ends: set[TensorRef] = {ref for ref, policy in policies.items() if not isinstance(policy, SharedWith)}
    for ref in policies:
        chain = []
        while ref not in ends:
            chain.append(ref)
            source = policies[ref].source
            if source not in policies or len(chain) > len(policies):
                raise ArtifactError("the file holds tensors that share the qparams of none", at=ref.name)
            ref = source
        ends.update(chain)


def _tuples(items: Any, length: int) -> list[Any]:
    if not all(isinstance(item, list) and len(item) == length for item in items):
        raise ArtifactError("the file holds a plan that cannot be read")
    return list(items)


def encode_coverage(coverage: Coverage) -> list[dict[str, Any]]:
    """Write the rows, without the places of the user's lines: these say how folders of a machine are named."""
    return [_record(replace(row, line="")) for row in coverage.rows]


def decode_coverage(data: Any, nodes: int) -> Coverage:
    """Read the rows.

    Raises:
        ArtifactError: they are none.
    """
    if not isinstance(data, list) or len(data) > nodes:
        raise ArtifactError("the file holds no coverage that can be read")
    return Coverage(tuple(_read(CoverageRow, item) for item in data))


def _record(item: Any) -> dict[str, Any]:
    return {field.name: encode(getattr(item, field.name)) for field in fields(item)}


def _read(kind: type, data: Any) -> Any:
    hints = _HINTS[kind]
    if not isinstance(data, dict) or set(data) != set(hints):
        raise ArtifactError("the file holds a record with other fields", at=kind.__name__)
    values = {name: decode(item) for name, item in data.items()}
    if wrong := [name for name, value in values.items() if not fits(value, hints[name])]:
        raise ArtifactError("a field of a record has the wrong type", at=f"{kind.__name__}.{wrong[0]}")
    return kind(**values)
