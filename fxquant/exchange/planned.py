"""The tensors of a prepared model that have qparams, and what each may be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.exchange.given import Given, numbers
from fxquant.exchange.rows import names_of
from fxquant.graph.query import called_module
from fxquant.graph.recurrent import weight_of
from fxquant.observers.qparams import middle
from fxquant.passes.base import weighted_nodes
from fxquant.plan.spec import Fixed, Observed, QParams, QScheme, TensorRef
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context

_FLOAT32 = torch.finfo(torch.float32)

Refuse = Callable[[QScheme], str | None]


@dataclass(slots=True)
class PlannedTensor:
    """Describes a tensor that owns its qparams."""

    name: str
    ref: TensorRef
    scheme: QScheme
    """As planned."""
    shape: tuple[int, ...] = (1,)
    """Of its scales."""
    refuses: list[tuple[str, Refuse]] = field(default_factory=list)
    """For each unit that reads or gives it, its pattern and what the back end answers to a scheme."""
    learned: QParams | None = None
    """Of a weight whose integers were learned: they belong to these."""

    def checked(self, given: Given, factor: float = 1.0) -> QParams:
        """Make qparams of what a file says.

        Args:
            given: For this tensor, or for one whose scale is ``factor`` times as large.
            factor: That number.

        Raises:
            SpecError: they cannot be, or cannot be here.
        """
        scheme = self._scheme_of(given)
        scale = numbers(given.scale, given.name, "scale", self.shape) / factor
        zero_point = numbers(given.zero_point, given.name, "zero point", self.shape)
        zero_point = zero_point + scheme.full_range[0] - (-(2 ** (scheme.bits - 1)) if given.signed else 0)
        self._check(given.name, scheme, scale.float(), zero_point)
        kind = zero_point.float() if scheme.float_qparams else zero_point.int()
        qparams = QParams(scheme, scale.float(), kind)
        if self.learned is not None and not qparams.same_qparams(self.learned):
            raise SpecError(
                "the integers of this weight were learned, and belong to other qparams",
                at=given.name,
                got=f"{qparams.scheme}, scale {qparams.scale.flatten()[0]:g}",
                expected=f"{self.learned.scheme}, scale {self.learned.scale.flatten()[0]:g}",
                hint="apply_qparams first, then adaround",
            )
        return qparams

    def _scheme_of(self, given: Given) -> QScheme:
        planned = self.scheme
        if given.scheme is None:
            widened = planned.bits < given.bits and planned.bits not in (2, 4, 8, 16)  # a byte may hold 6 bits
            if given.bits == planned.bits or widened:
                return planned
            words = {name: getattr(planned, name) for name in ("signed", "symmetric", "axis", "group_size")}
            return QScheme(bits=given.bits, **words)
        found = (given.scheme.axis, given.scheme.group_size, given.scheme.float_qparams)
        if found != (planned.axis, planned.group_size, planned.float_qparams):
            raise SpecError(
                "qparams have another granularity than the plan",
                at=given.name,
                got=str(given.scheme),
                expected=str(planned),
                hint="the configuration that the model is prepared with says which values share a scale",
            )
        return given.scheme

    def _check(self, name: str, scheme: QScheme, scale: Tensor, zero_point: Tensor) -> None:
        if not bool((scale.isfinite() & (scale > 0)).all()):
            raise SpecError("a scale is no number above 0", at=name, got=_first(scale, scale.isfinite() & (scale > 0)))
        largest = _FLOAT32.max / (scheme.quant_max - scheme.quant_min)
        usable = (scale >= _FLOAT32.smallest_normal) & (scale <= largest)
        if not bool(usable.all()):
            expected = f"a scale from {_FLOAT32.smallest_normal:.3g} to {largest:.3g}"
            raise SpecError("a scale is unusable", at=name, got=_first(scale, usable), expected=expected)
        if scheme.float_qparams:
            inside, expected = zero_point.isfinite(), "numbers of steps"
        elif scheme.symmetric:
            inside, expected = zero_point == middle(scheme), f"{middle(scheme)}, for {scheme}"
        else:
            inside = (zero_point >= scheme.quant_min) & (zero_point <= scheme.quant_max)
            inside &= zero_point == zero_point.round()
            expected = f"whole numbers from {scheme.quant_min} to {scheme.quant_max}, for {scheme}"
        if not bool(inside.all()):
            raise SpecError(
                "a zero point is no quantized value", at=name, got=_first(zero_point, inside), expected=expected
            )
        for pattern, refuse in self.refuses:
            if scheme != self.scheme and (reason := refuse(scheme)) is not None:
                raise SpecError(
                    f"the back end cannot run {pattern!r} with these qparams", at=name, got=str(scheme), expected=reason
                )


def _first(values: Tensor, fits: Tensor) -> str:
    return f"{values[~fits].flatten()[0].item():g}"


@dataclass(slots=True)
class PlannedTensors:
    """Holds the tensors of a plan by the names that users know."""

    owners: dict[str, PlannedTensor] = field(default_factory=dict)
    members: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Tensor that shares qparams -> whose they are, and the factor between the scales."""


def planned_tensors(prepared: PreparedModel) -> PlannedTensors:
    """List the tensors of a plan."""
    plan, found = prepared.plan, PlannedTensors()
    names = names_of(plan.policies)
    # Who has qparams of its own, and who shares them.
    for ref, policy in plan.policies.items():
        owner = plan.qparams_owner(ref)
        if owner != ref:
            found.members[names[ref]] = names[owner], plan.qparams_factor(ref)
        elif isinstance(policy, Observed):
            found.owners[names[ref]] = PlannedTensor(names[ref], ref, policy.observer().scheme)
        elif isinstance(policy, Fixed):
            found.owners[names[ref]] = PlannedTensor(names[ref], ref, policy.qparams.scheme)
    # The shapes of the scales of weights.
    by_ref = {tensor.ref: tensor for tensor in found.owners.values()}
    context = pass_context(prepared, plan)
    for node, unit in weighted_nodes(prepared.graph_module, context):
        tensor = by_ref[unit.roles["weight"]]
        tensor.shape = _scale_shape(weight_of(called_module(node)).shape, tensor.scheme)
        layer: Any = context.weight_layers.get(unit.root)
        tensor.learned = None if layer is None else layer.weight_fake_quant.qparams()
    # What the back end refuses.
    for unit in plan.units:
        pattern = context.pattern_of(unit)
        rule = prepared.backend.rule_for(pattern) if pattern.handler is None else None
        for role, ref in unit.roles.items() if rule is not None else ():
            owner_of = by_ref.get(plan.qparams_owner(ref)) if ref in plan.policies else None
            if owner_of is not None and rule is not None:
                refuse = rule.weight if role == "weight" else rule.activation
                owner_of.refuses.append((unit.pattern, refuse))
    return found


def _scale_shape(shape: Sequence[int], scheme: QScheme) -> tuple[int, ...]:
    if scheme.axis is None:
        return (1,)
    axis = scheme.axis % len(shape)
    if scheme.group_size is None:
        return (shape[axis],)
    return shape[axis], shape[axis + 1] // scheme.group_size
