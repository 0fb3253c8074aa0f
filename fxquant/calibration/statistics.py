"""All that is written down of a calibration, beside what observers remember: one module, saved with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.calibration.channel_extremes import ChannelExtremes, Extremes
from fxquant.calibration.joined_ranges import Part, inequality, part_name
from fxquant.calibration.range_history import RangeHistory
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED
from fxquant.graph.query import is_shape_query, module_of, nodes_by_name, values_read_by
from fxquant.passes.float_joins import JoinRanges
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Observed, TensorRef

FIRST, LONGER, EVERY = 4, 16, 8
"""Channels are looked at in the first four batches, those that may be dead in sixteen, all of them in every eighth."""

LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
"""Of what they read and make, one dimension counts channels, and which one is known."""


class CalibrationStatistics(nn.Module):
    """Tells how the ranges of a plan came about: ``history`` of all, ``channels`` of what layers read and make, and
    ``joined``, the extremes of what concatenations and stacks join, which often has no range of its own.

    Args:
        gm: The prepared float graph.
        plan: Says which values are observed.
        observers: Name of a value -> its observer, or a fake-quantize module around it.
        joins: The units of the plan that give several values the same qparams.
        in_float: Roots of those that ``convert`` leaves in float where the same qparams do not suit all parts.
    """

    history: RangeHistory
    channels: nn.ModuleDict
    joined: nn.ModuleDict

    def __init__(
        self,
        gm: GraphModule,
        plan: QuantPlan,
        observers: nn.ModuleDict,
        joins: Sequence[QuantUnit] = (),
        in_float: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.refs = observed(gm, plan)
        self.history = RangeHistory([ref.name for ref in self.refs])
        self.from_inputs = _computed_from_inputs(gm)
        """Names of the values that depend on values of the inputs; the others are constants of the model."""
        # Extremes by channel, of one value for each set of qparams.
        self.channels = nn.ModuleDict()
        self.channel_owners: dict[str, str] = {}
        """Name of an observed value -> the value sharing its qparams whose channel extremes are recorded."""
        for value, owner, axis in _channel_axes(gm, plan):
            if owner.name in observers._modules and owner.name not in self.channel_owners:
                self.channels._modules[value] = ChannelExtremes(axis)
                self.channel_owners[owner.name] = value
        # Extremes of what is joined, and who has its qparams.
        self._joins: dict[str, tuple[str, ...]] = {}
        """Root of a join -> names of what it takes."""
        self._join_owners: dict[str, list[str]] = {}
        """Name of an observed value -> the joins with its qparams, but those that may be float."""
        self._part_names: dict[str, str] = {}
        self.joined = nn.ModuleDict()
        nodes = nodes_by_name(gm)
        for unit in joins:
            self._joins[unit.root] = tuple(unit.roles[role].name for role in unit.inputs)
            if unit.root not in in_float:
                self._join_owners.setdefault(plan.qparams_owner(unit.roles["y"]).name, []).append(unit.root)
            for name in self._joins[unit.root]:
                self._part_names[name] = part_name(nodes[name])
                self.joined._modules[name] = Extremes()

    def observers_of_next_batch(self) -> dict[str, list[nn.Module]]:
        """Return, by the name of a value, what sees it in the next batch. What a failed batch has left is forgotten."""
        due: dict[str, list[nn.Module]] = {}
        for value, extremes in self._watching():
            extremes.forget()
            due[value] = [extremes]
        for name, channels in self._channel_extremes():
            channels.forget()
            if self._is_due(channels):
                due.setdefault(name, []).append(channels)
        return due

    def _is_due(self, channels: ChannelExtremes) -> bool:
        batch = int(self.history.batches)
        return batch < FIRST or batch % EVERY == 0 or (batch < LONGER and channels.has_suspects())

    def may_be_due(self, batch: int) -> bool:
        """Tell whether channels may be looked at in that batch, whatever the batches before it have shown."""
        return batch < LONGER or batch % EVERY == 0

    def extremes(self) -> list[tuple[str, str, ChannelExtremes | Extremes]]:
        """Return what watches channels and joined values: a name for each, the value that it sees, and itself."""
        return [
            *((f"channels/{value}", value, each) for value, each in self._channel_extremes()),
            *((f"joined/{value}", value, each) for value, each in self._watching()),
        ]

    def take_alone(self, seen: Mapping[str, tuple[Tensor, ...]]) -> None:
        """Take note of what ``look_alone`` of the extremes saw in the next batch, under the names of ``extremes``."""
        for name, _, each in self.extremes():
            found: Any = seen.get(name)
            if found is not None and (isinstance(each, Extremes) or self._is_due(each)):
                each.take_alone(*found)

    def _watching(self) -> list[tuple[str, Extremes]]:
        return cast(Any, list(self.joined._modules.items()))

    def _channel_extremes(self) -> list[tuple[str, ChannelExtremes]]:
        return cast(Any, list(self.channels._modules.items()))

    def update(self, observers: nn.ModuleDict) -> bool:
        """Take note of a batch that has just been observed; whether a row of the history was written."""
        for _, channels in self._channel_extremes():
            channels.keep()
        for _, extremes in self._watching():
            extremes.keep()
        return self.history.update(self._inside(observers))

    def stable(self, observers: nn.ModuleDict) -> bool:
        """Tell whether no range changes any more from batch to batch, but for values that were never seen."""
        inside = self._inside(observers)
        settled, after = self.history.is_stable(inside), self.history.stable_after(inside)
        return bool(settled.any()) and bool((settled | (after == 0)).all())

    def channels_of(self, name: str) -> ChannelExtremes | None:
        """Return the statistic of the channels of an observed value, if there is one."""
        found: Any = self.channels._modules.get(self.channel_owners.get(name, ""))
        return found

    def parts_of(self, join: str) -> list[Part]:
        """Return the parts of the join whose result has that name."""
        seen: Any = self.joined._modules
        return [Part(self._part_names[name], *seen[name].ends.tolist()) for name in self._joins[join]]

    def joins(self) -> dict[str, JoinRanges]:
        """Root of each join -> what its inputs reach."""
        found = {}
        for join, names in self._joins.items():
            parts = self.parts_of(join)
            ranges = {name: (part.low, part.high) for name, part in zip(names, parts, strict=True)}
            found[join] = JoinRanges(inequality(parts), ranges)
        return found

    def joins_on(self, name: str) -> list[str]:
        """Return the names of the joins whose result has the qparams of an observed value."""
        return self._join_owners.get(name, [])

    def _inside(self, observers: nn.ModuleDict) -> list[nn.Module]:
        return [observer_in(observers._modules[ref.name]) for ref in self.refs]


def observed(gm: GraphModule, plan: QuantPlan) -> tuple[TensorRef, ...]:
    """Return the activations that an observer measures, in the order of the graph."""
    order = {name: index for index, name in enumerate(nodes_by_name(gm))}
    policies = plan.policies.items()
    refs = [ref for ref, policy in policies if ref.kind == "activation" and isinstance(policy, Observed)]
    return tuple(sorted(refs, key=lambda ref: order[ref.name]))


def _computed_from_inputs(gm: GraphModule) -> frozenset[str]:
    """Return the names of values that depend on the values of inputs, and not on their shapes alone."""
    found: set[str] = set()
    for node in gm.graph.nodes:
        if is_shape_query(node):
            continue
        if node.op == "placeholder" or any(source.name in found for source in values_read_by(node)):
            found.add(node.name)
    return frozenset(found)


def _channel_axes(gm: GraphModule, plan: QuantPlan) -> list[tuple[str, TensorRef, int]]:
    """Return values, the owners of their qparams, and channel dimensions: results of layers, then inputs."""
    nodes = nodes_by_name(gm)
    made, read = [], []
    for unit in plan.units:
        layer: Any = _layer_of(unit, nodes)
        if layer is None:
            continue
        axis = 1 - layer.weight.dim()
        if "y" in unit.roles:
            made.append((unit.roles["y"].name, plan.qparams_owner(unit.roles["y"]), axis))
        if "x" in unit.roles and unit.roles["x"].kind == "activation":
            read.append((unit.roles["x"].name, plan.qparams_owner(unit.roles["x"]), axis))
    return made + read


def _layer_of(unit: QuantUnit, nodes: Mapping[str, Node]) -> nn.Module | None:
    modules = (module_of(nodes[name]) for name in unit.nodes)
    return next((module for module in modules if isinstance(module, LAYERS)), None)
