"""The plan: nodes that become one quantized unit, the policy of each tensor, and refusals with their reasons."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fxquant.plan.spec import Means, QParams, QParamsPolicy, SharedWith, TensorRef


@dataclass(frozen=True, slots=True)
class QuantUnit:
    """Nodes that are quantized, fused and lowered as a whole."""

    pattern: str
    """Name of the pattern that matched."""
    nodes: tuple[str, ...]
    """Names of the nodes, in topological order: the root, whose value is the unit's output, is last."""
    captures: Mapping[str, str]
    """Pattern's name for a node or an input -> name of the node, e.g. ``{"conv": "layer1_0_conv1", "x": "relu"}``."""
    inputs: tuple[str, ...]
    """Names of the quantized inputs, in the order in which the lowered operator takes them: ``("x", "residual")``."""
    roles: Mapping[str, TensorRef]
    """Role -> tensor: every name in ``inputs``, ``"weight"`` where there is one, ``"y"`` for the output, and
    ``"mean"`` for the means of the input's channels, where the bias is corrected with them.

    A ``TensorRef`` is a name and a kind: activation, parameter, call or mean. A unit that gives float values has no
    ``"y"``. A dynamic unit has a role for each value that a call quantizes by its own range; ``inputs`` does not name
    these. A recurrent layer with a static range has the role ``"x"``.
    """

    @property
    def root(self) -> str:
        return self.nodes[-1]

    @property
    def called(self) -> str:
        """Return the name of the node whose arguments the lowered module takes, where none of ``inputs`` is quantized.

        An activation stands behind it.
        """
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason why an operator that could have been quantized stays float."""

    node: str
    pattern: str
    """Name of the pattern that would have covered it; empty where no pattern knows the operator."""
    reason: str
    excused: bool = False
    """True where the configuration asked for float, or where nothing is lost: strict mode does not complain."""


Rejection = Refusal
"""The former name."""


@dataclass(frozen=True, slots=True)
class IdleCall:
    """A call that does nothing in evaluation mode, as dropout, kept for training: where it stood, and what it was."""

    name: str
    inputs: tuple[str, ...]
    """Names of its first arguments: nodes, or other such calls. It gives the first of them back."""
    readers: tuple[tuple[str, tuple[int, ...]], ...]
    """Names of what reads it, each with the places where it stands among the nodes that the reader takes."""
    before: str
    """Name of the first node after it that is left."""
    op: str
    target: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    """Its other arguments, by position and by name: constants."""
    meta: Mapping[str, Any]
    """Of its node."""


@dataclass(frozen=True, slots=True)
class QuantPlan:
    """Immutable; can be printed, compared and tested without running anything."""

    units: tuple[QuantUnit, ...] = ()
    policies: Mapping[TensorRef, QParamsPolicy] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    qparams: Mapping[TensorRef, QParams] = field(default_factory=dict)
    """Empty in the plan of ``prepare``; ``convert`` makes a plan that has them, and leaves this one as it is."""
    fake_quants: Mapping[TensorRef, str] = field(default_factory=dict)
    """While training: the path of the module that fake-quantizes a tensor; of a weight, that of its layer."""
    idle: tuple[IdleCall, ...] = ()
    """What was taken out of the graph, in its order, and stands in it while training."""

    @property
    def rejections(self) -> tuple[Refusal, ...]:
        """``refusals`` under their former name."""
        return self.refusals

    def unit_of(self) -> dict[str, QuantUnit]:
        """Node name -> the unit that holds it."""
        return {name: unit for unit in self.units for name in unit.nodes}

    def rounding_inside(self) -> frozenset[str]:
        """Return the roots of recurrent units whose qparams ``x`` are of values inside the layer, not of its input."""
        return frozenset(unit.root for unit in self.units if unit.roles.get("x") == TensorRef(unit.root))

    def qparams_owner(self, ref: TensorRef) -> TensorRef:
        """Follow ``SharedWith`` to the tensor whose qparams ``ref`` uses."""
        return self._sharing(ref)[-1]

    def last_link(self, ref: TensorRef) -> tuple[TensorRef, TensorRef]:
        """Return the last tensor before the owner of the qparams of ``ref``, and the owner."""
        chain = self._sharing(ref)
        return chain[-2:][0], chain[-1]

    def qparams_factor(self, ref: TensorRef) -> float:
        """Return the factor between the scale of the tensor that owns the qparams and that of ``ref``."""
        policies = (self.policies[link] for link in self._sharing(ref))
        return math.prod(policy.factor for policy in policies if isinstance(policy, SharedWith))

    def without_means(self, roots: Collection[str] | None = None) -> QuantPlan:
        """Return a plan that corrects no bias, or none of the units of these roots: what is trained learns its own."""
        units = tuple(
            replace(unit, roles={k: ref for k, ref in unit.roles.items() if k != "mean"})
            if roots is None or unit.root in roots
            else unit
            for unit in self.units
        )
        used = {ref for unit in units for ref in unit.roles.values()}
        policies = {
            ref: policy for ref, policy in self.policies.items() if not isinstance(policy, Means) or ref in used
        }
        return replace(self, units=units, policies=policies)

    def _sharing(self, ref: TensorRef) -> list[TensorRef]:
        """Follow ``SharedWith`` from ``ref`` to the owner of its qparams, and list each tensor on the way."""
        chain = [ref]
        while isinstance(policy := self.policies[chain[-1]], SharedWith):
            chain.append(policy.source)
        return chain

    def with_observations(self, qparams: Mapping[TensorRef, QParams], refusals: Iterable[Refusal] = ()) -> QuantPlan:
        """Return the plan with the qparams that observers chose, without the units that ``refusals`` name by root.

        Policies and qparams that no unit needs any more are dropped with them, and what only training needs.
        """
        refused = tuple(refusals)
        gone = {refusal.node for refusal in refused}
        units = tuple(unit for unit in self.units if unit.root not in gone)
        # Modules are made in this order: that of the units, since the one of a set differs from process to process.
        needed = dict.fromkeys(ref for unit in units for ref in unit.roles.values() if ref in self.policies)
        kept = {link for ref in needed for link in self._sharing(ref)}
        return replace(
            self,
            units=units,
            idle=(),
            refusals=self.refusals + refused,
            policies={ref: policy for ref, policy in self.policies.items() if ref in kept},
            qparams={
                ref: qparams[owner].scaled(self.qparams_factor(ref))
                for ref in needed
                if (owner := self.qparams_owner(ref)) in qparams
            },
        )
