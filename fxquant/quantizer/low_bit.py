"""``low_bit_qconfig``: few bits everywhere, and more at both ends of a model, which ``prepare`` finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn
from torch.fx import GraphModule

from fxquant.analysis.overrides import addresses
from fxquant.graph.query import nodes_by_name
from fxquant.observers.defaults import float_qparams_weight_only_qconfig
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.mse import MSEObserver
from fxquant.passes.qconfig_rules import decide
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Observed, QScheme


class LowBitMapping(QConfigMapping):
    """Rules, and a configuration for the first and the last layer with a weight, whichever these are."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: QConfig | None = None
        """None: both are configured like all others."""


def low_bit_qconfig(weight_bits: int, activation_bits: int, *, ends: int | None = 8) -> QConfigMapping:
    """Return a mapping that quantizes everything to few bits, and both ends of the model to more.

    Weights are symmetric, with one scale for each output channel, that of least squared error (``MSEObserver``).
    Activations are affine, with one scale for each tensor (``HistogramObserver``). Biases are corrected. Tables of
    embeddings are as in ``get_default_qconfig_mapping``.

    The ends are the weights of the first and of the last layer, the result of the first one and the input of the last.
    :func:`prepare` finds these layers, and writes rules for them into ``prepared.config``. A rule that is added to the
    mapping, and names one of them, wins.

    Args:
        weight_bits: 2 to 16. On the CPU, up to 8.
        activation_bits: The same.
        ends: Bits of weights and activations at the ends; None: the same bits as all others.

    Raises:
        SpecError: a number of bits is out of range.

    Source:
        Both ends keep 8 bits in Li et al., "BRECQ", arXiv:2102.05426, section 4, and in most that is published since.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).eval()
        >>> prepared = fxquant.prepare(model, torch.randn(2, 4), low_bit_qconfig(4, 4))
        >>> [prepared.config.resolve(name).qconfig.weight_scheme.bits for name in "012"]
        [8, 4, 8]
    """
    mapping = LowBitMapping()
    mapping.set_global(_qconfig(weight_bits, activation_bits))
    for table in (nn.Embedding, nn.EmbeddingBag):
        mapping.set_object_type(table, float_qparams_weight_only_qconfig)
    mapping.ends = None if ends is None else _qconfig(ends, ends)
    return mapping


def _qconfig(weight_bits: int, activation_bits: int) -> QConfig:
    activation = QScheme(bits=activation_bits, signed=isinstance(activation_bits, int) and activation_bits > 8)
    weight = QScheme(bits=weight_bits, symmetric=True, axis=0)
    return QConfig(
        activation=HistogramObserver.with_args(scheme=activation),
        weight=MSEObserver.with_args(scheme=weight),
        correct_bias=True,
    )


def with_ends(config: LowBitMapping, gm: GraphModule, plan: QuantPlan) -> QConfigMapping:
    """Return the rules of ``config``, and a rule for each operator at the ends of the model.

    Args:
        config: It is not changed.
        gm: The graph that was planned.
        plan: As it was made by ``config``.
    """
    mapping = QConfigMapping.from_dict(config.to_dict())
    multiplying = [unit for unit in plan.units if _multiplies(unit, plan)]
    if config.ends is None or not multiplying:
        return mapping
    first, last = multiplying[0], multiplying[-1]
    before_last = [unit for unit in _makers_of_input(last, plan) if unit not in (first, last)]
    nodes, decisions = nodes_by_name(gm), decide(gm, config)
    by_root = addresses(gm, (first, last, *before_last), config)
    for unit in dict.fromkeys((first.root, last.root, *(each.root for each in before_last))):
        members = next(each.nodes for each in plan.units if each.root == unit)
        for name, address in zip(members, by_root[unit], strict=True):
            rule = decisions[nodes[name]]
            if rule.kind != "global" or rule.qconfig is None:
                continue  # the user has said more
            keeps_weight = unit not in (first.root, last.root)
            chosen = replace(rule.qconfig, activation=config.ends.activation) if keeps_weight else config.ends
            address.set(mapping, chosen)
    return mapping


def _multiplies(unit: QuantUnit, plan: QuantPlan) -> bool:
    """Tell whether a unit multiplies by a weight: a table is read."""
    policy = plan.policies.get(unit.roles["weight"]) if "weight" in unit.roles else None
    return isinstance(policy, Observed) and not policy.observer().scheme.float_qparams


def _makers_of_input(unit: QuantUnit, plan: QuantPlan) -> Iterator[QuantUnit]:
    """Yield the unit whose result has the qparams that the input of ``unit`` is rounded by, if there is one."""
    if "x" not in unit.roles or unit.roles["x"] not in plan.policies:
        return
    owner = plan.qparams_owner(unit.roles["x"])
    if isinstance(plan.policies[owner], Observed):
        yield from (each for each in plan.units if each.roles.get("y") == owner)
