"""Finds what can be learned of the blocks of a simulation."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.query import called_module, module_of
from fxquant.measure.parity import plan_of
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed, QParams, QScheme, TensorRef
from fxquant.training.block_learning import BlockLearning
from fxquant.training.block_parts import BlockParts, LearnedLayer, LearnedScale
from fxquant.training.blocks import Block, Cutter
from fxquant.training.learning_block import LearningBlock
from fxquant.training.named_blocks import chosen_blocks
from fxquant.training.rounding_layers import rounding_layers
from fxquant.training.weighted_units import Left


@dataclass(frozen=True, slots=True)
class LearnableBlocks:
    """The blocks of a simulation, with what is learned of each."""

    plan: QuantPlan
    """Of the simulation."""
    order: Sequence[Node]
    blocks: Sequence[LearningBlock]
    layers: Mapping[str, Any]
    """Root of a unit -> a layer with the rounding that is learned."""
    left: Sequence[Left]

    def qparams(self, planned: QuantPlan) -> dict[TensorRef, QParams]:
        """Return the qparams of activations that were learned.

        Args:
            planned: What was converted: there values have qparams of their own that share them in the simulation.
        """
        changed = [each.parts for each in self.blocks if not each.unchanged]
        learned = {scale.owner: scale.learned() for parts in changed for scale in parts.scales}
        found: dict[TensorRef, QParams] = {}
        for ref, policy in planned.policies.items():
            if isinstance(policy, Observed) and ref in self.plan.policies:
                owner = self.plan.qparams_owner(ref)
                if owner in learned:
                    found[ref] = learned[owner].scaled(self.plan.qparams_factor(ref))
        return found


def learnable_blocks(
    simulated: GraphModule, own: Mapping[str, Any], blocks: str | Sequence[str], learning: BlockLearning
) -> LearnableBlocks:
    """Return the blocks in which there is something to learn.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave. Not changed.
        own: Root of a unit -> the layer whose weight rounds in its own way.
        blocks: As for ``reconstruct``.
        learning: Says which scales are learned.

    Raises:
        InputError, UnknownNameError: blocks cannot be what was asked for.
    """
    plan = plan_of(simulated)
    cutter = Cutter(simulated, plan)
    chosen = chosen_blocks(cutter, blocks)
    # Layers with a weight of few bits.
    weighted = [unit for unit in plan.units if "weight" in unit.roles]
    wide = [unit for unit in weighted if plan.qparams[unit.roles["weight"]].scheme.bits >= 8]
    left = [Left(unit.root, "its weight has 8 bits or more") for unit in wide]
    inside = {unit.root for block in chosen for unit in block.units}
    others = tuple(unit for unit in weighted if unit not in wide)
    left += [Left(unit.root, "it lies in none of the blocks") for unit in others if unit.root not in inside]
    few = replace(plan, units=tuple(unit for unit in others if unit.root in inside))
    layers, refused = rounding_layers(simulated, few, copy.deepcopy(dict(own)), "mse")  # those that are kept stay
    left += refused
    # Scales of activations that are used in one block alone.
    scales = _Scales(cutter, plan)
    found = []
    for block in chosen:
        parts = _parts(cutter, block, layers, scales, learning)
        if parts.layers or parts.scales:
            bits = [each.scheme.bits for each in (*parts.roundings.values(), *_read_by(block))]
            found.append(LearningBlock(block, parts, min(bits, default=8), learning))
    return LearnableBlocks(plan, cutter.order, found, layers, left)


def _parts(
    cutter: Cutter, block: Block, layers: Mapping[str, Any], scales: _Scales, learning: BlockLearning
) -> BlockParts:
    found: dict[Node, LearnedLayer] = {}
    for unit in block.units:
        rounding = layers[unit.root].weight_fake_quant if unit.root in layers else None
        if rounding is not None and rounding.V.requires_grad:
            node = cutter.layer(unit)
            found[node] = LearnedLayer(unit.root, called_module(node), rounding)
    return BlockParts(
        found,
        [scale for scale in scales.within(block) if _is_learned(scale.learned().scheme, learning)],
        {node: called_module(node) for node in block.nodes if cutter.is_rounding(node)},
        block.end,
    )


def _is_learned(scheme: QScheme, learning: BlockLearning) -> bool:
    """Tell whether the scale of a scheme may move: powers of two stay such."""
    return learning.learns_scale(scheme.bits) and not scheme.power_of_two


def _read_by(block: Block) -> list[StaticFakeQuantize]:
    modules = map(module_of, block.read)
    return [module for module in modules if isinstance(module, StaticFakeQuantize)]


class _Scales:
    """The scales of activations, and the nodes that round by each."""

    def __init__(self, cutter: Cutter, plan: QuantPlan) -> None:
        self._plan = plan
        self._nodes: dict[TensorRef, dict[Node, float]] = {}
        """Owner of qparams -> the nodes that round by them, and the factor of each."""
        for node in cutter.order:
            ref = TensorRef(node.all_input_nodes[0].name) if cutter.is_rounding(node) else None
            if ref is not None and ref in plan.qparams and isinstance(plan.policies[plan.qparams_owner(ref)], Observed):
                self._nodes.setdefault(plan.qparams_owner(ref), {})[node] = plan.qparams_factor(ref)
        roots = plan.rounding_inside()
        self._nodes = {ref: nodes for ref, nodes in self._nodes.items() if ref.name not in roots}

    def within(self, block: Block) -> list[LearnedScale]:
        """Return the scales that are used in a block and nowhere else."""
        inside = {*block.nodes}
        return [
            LearnedScale(
                owner,
                self._plan.qparams[owner],
                {node: (called_module(node), factor) for node, factor in nodes.items()},
            )
            for owner, nodes in self._nodes.items()
            if inside.issuperset(nodes) and owner in self._plan.qparams
        ]
