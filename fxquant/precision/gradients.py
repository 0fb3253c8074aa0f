"""Estimates by gradients of the output the noise that a rounded unit adds to it: one backward pass a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import InputError, listing
from fxquant.graph.query import module_of, nodes_by_name
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import ROUNDINGS, FloatRun, PartlyRounded
from fxquant.precision.group_runs import own_roundings
from fxquant.precision.groups import PrecisionGroup

PROJECTIONS = 8
"""Random directions of the output that are followed back. Their mean square is that of the whole, on average."""


class _RootValues(FloatRun):
    """Runs the float model so that gradients reach the results of some units."""

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], roots: frozenset[str]) -> None:
        super().__init__(gm, bound, keep_values=True)
        self._roots = roots
        self.values: dict[str, Tensor] = {}

    def compute(self, n: Node) -> Any:
        value = super().compute(n)
        if n.name in self._roots and isinstance(value, Tensor) and value.is_floating_point():
            value = value if value.requires_grad else value.detach().requires_grad_()
            self.values[n.name] = value
        return value


class OutputGradients:
    """The gradients of random projections of the output by the results of units, on one batch of the float model.

    The noise that a small change ``d`` of a unit's result makes at the output is the expectation of ``(g · d)²`` over
    projections with gradients ``g``.

    Args:
        simulated: A simulation: without its roundings it is the float model.
        groups: Those to estimate.
        seed: Of the projections.
    """

    def __init__(self, simulated: GraphModule, groups: Sequence[PrecisionGroup], seed: int) -> None:
        self._simulated, self._groups = simulated, groups
        self._generator = torch.Generator().manual_seed(seed)
        self._values: dict[str, Tensor] = {}
        self._gradients: list[dict[str, Tensor]] = []
        self._signal = 0.0
        self._rows = 0
        self._floats: dict[Node, Any] = {}

    def add(self, bound: Mapping[str, Any]) -> None:
        """Run a batch forwards, and each projection backwards.

        Raises:
            InputError: no gradient reaches the units from the output.
        """
        self._simulated.requires_grad_(False)
        run = _RootValues(self._simulated, bound, frozenset(root for group in self._groups for root in group.roots))
        with torch.enable_grad():
            output = run.run()
        outputs = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in outputs if leaf.is_floating_point() and leaf.requires_grad]
        if not outputs:
            raise InputError(
                "no gradient reaches the layers from the model's output",
                got="an output that is no differentiable function of them",
                hint='estimate="alone" runs each of them alone',
            )
        finite = [leaf.detach().isfinite() for leaf in outputs]  # the rest is left out, as ``sqnr`` does
        signals = [leaf.detach().double().where(kept, 0.0) for leaf, kept in zip(outputs, finite, strict=True)]
        self._signal = sum(float(signal.square().sum()) for signal in signals)
        self._rows = len(outputs[0]) if outputs[0].dim() else 0
        names = list(run.values)
        for _ in range(PROJECTIONS):
            drawn = [torch.randn(leaf.shape, generator=self._generator).to(leaf) for leaf in outputs]
            drawn = [each.where(kept, 0.0) for each, kept in zip(drawn, finite, strict=True)]
            found = torch.autograd.grad(
                outputs, [run.values[name] for name in names], drawn, retain_graph=True, allow_unused=True
            )
            reached = {n: g for n, g in zip(names, found, strict=True) if g is not None}
            if broken := [name for name, gradient in reached.items() if not bool(gradient.isfinite().all())]:
                raise InputError(
                    "the gradients of the output are not finite",
                    got=listing(broken),
                    expected="finite gradients by the results of these operators",
                    hint='estimate="alone" needs none, and leaves out what is not finite in the output',
                )
            self._gradients.append(reached)
        self._values = {name: value.detach() for name, value in run.values.items()}
        self._floats = {node: _detached(value) for node, value in run.env.items()}

    def noise_of(self, simulated: GraphModule, bound: Mapping[str, Any]) -> tuple[Tensor, float]:
        """Return the noise of each group with the choice that a simulation is of, float64 [groups], and the signal."""
        nodes, plan = nodes_by_name(simulated), plan_of(simulated)
        units = {unit.root: unit for unit in plan.units}
        floats = {node.name: value for node, value in self._floats.items()}
        noise = torch.zeros(len(self._groups), dtype=torch.float64)
        with torch.no_grad():
            for place, group in enumerate(self._groups):
                own = own_roundings(simulated, group)
                targets = {str(node.target) for node in own}
                run = PartlyRounded(simulated, bound, targets)
                for root in group.roots:
                    if root in units and root in self._values:
                        rounded = _result(run, [nodes[name] for name in units[root].nodes], own, floats)
                        noise[place] += self._projected(root, rounded - self._values[root])
        return noise, self._signal

    def _projected(self, root: str, change: Tensor) -> float:
        """Return the mean over projections of the squared product of a change with the gradient, row by row."""
        total = 0.0
        change = change.double().where(self._values[root].isfinite(), 0.0)
        by_row = change.dim() > 0 and len(change) == self._rows
        for gradients in self._gradients:
            if root in gradients:
                product = gradients[root].double() * change
                sums = product.flatten(1).sum(1) if by_row and product.dim() > 1 else product.sum().reshape(1)
                total += float(sums.square().sum())
        return total / len(self._gradients)


def _detached(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, Tensor.detach, value)


def _result(run: PartlyRounded, members: Sequence[Node], own: Sequence[Node], floats: Mapping[str, Any]) -> Tensor:
    """Return the result of a unit, rounded as its choice says, on the values of the float model."""
    inside = set(members)
    run.env = {}
    for node in dict.fromkeys(each for member in members for each in member.all_input_nodes):
        if node not in inside:
            run.env[node] = _value(run, node, floats)
    value: Any = None
    for member in members:
        value = run.env[member] = run.run_node(member)
    behind = next((user for user in members[-1].users if user in own and user not in inside), None)
    rounded: Tensor = value if behind is None else run.run_node(behind)
    return rounded


def _value(run: PartlyRounded, node: Node, floats: Mapping[str, Any]) -> Any:
    """Return the float value of a node; of a rounding, what the run makes of the float value that it rounds."""
    if not isinstance(module_of(node), ROUNDINGS):
        return floats[node.name]
    source = node.all_input_nodes[0]
    run.env[source] = floats[source.name]
    return run.run_node(node)
