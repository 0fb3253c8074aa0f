"""Rules that keep chosen units in float, or on 16 bits, on top of a configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.errors import UnknownNameError
from fxquant.graph.query import CALLED, nodes_by_name
from fxquant.observers.minmax import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.passes.qconfig_rules import names_of_calls, rules_of_calls
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.quant_plan import QuantUnit
from fxquant.registry import did_you_mean

KEEP = ("float", "int16")
"""What a unit may be kept as."""


@dataclass(frozen=True, slots=True)
class Address:
    """Means one operator of a model, and no other, in a ``QConfigMapping``."""

    module_name: str
    """Path of the module; of a function, of the module that calls it."""
    use: tuple[Any, int] | None
    """Type, and which use of it in that module; None: the path alone is enough."""

    def set(self, mapping: QConfigMapping, qconfig: QConfig | None) -> None:
        """Make a rule for it."""
        if self.use is None:
            mapping.set_module_name(self.module_name, qconfig)
        else:
            mapping.set_module_name_object_type_order(self.module_name, *self.use, qconfig)


def addresses(gm: GraphModule, units: Iterable[QuantUnit], config: QConfigMapping) -> dict[str, tuple[Address, ...]]:
    """Root of a unit -> the addresses of all its operators.

    Args:
        gm: The prepared float graph.
        units: As planned for it.
        config: The configuration that they were planned by.
    """
    nodes, names, rules = nodes_by_name(gm), names_of_calls(gm), rules_of_calls(gm, config)
    calls = Counter(path for node, (path, *_) in names.items() if _is_called(node))

    def address(node: Node) -> Address:
        path, _, uses, weight = names[node]
        ordered = rules[node].kind == "module_name_object_type_order"
        if not ordered and _is_called(node) and calls[path] == 1:
            return Address(path, None)
        if not ordered and weight:
            return Address(weight, None)
        used = [use for use in uses if use == rules[node].key] or uses  # the rule that decides now, if any
        caller, kind, index = used[0]
        return Address(caller, (kind, index))

    return {unit.root: tuple(address(nodes[name]) for name in unit.nodes) for unit in units}


def _is_called(node: Node) -> bool:
    """Tell whether the user called a module here."""
    called = node.meta.get(CALLED)
    return node.op == "call_module" if called is None else called[1] is not None


def keeping(config: QConfigMapping, overridden: Iterable[tuple[Address, ...]], to: str) -> QConfigMapping:
    """Return a new mapping: ``config``, and a rule for every operator of the units that are kept.

    Args:
        config: It is not changed.
        kept: Addresses of units.
        to: One of ``KEEP``.

    Raises:
        UnknownNameError: ``to`` is neither.
    """
    if to not in KEEP:
        raise UnknownNameError(
            "unknown kind of unit to keep", got=repr(to), expected=", ".join(KEEP), hint=did_you_mean(to, KEEP)
        )
    mapping = QConfigMapping.from_dict(config.to_dict())
    for unit in overridden:
        for address in unit:
            address.set(mapping, None if to == "float" else INT16)
    return mapping


INT16 = QConfig(
    activation=MinMaxObserver.with_args(dtype=torch.int16, qscheme="per_tensor_affine"),
    weight=PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int16, qscheme="per_channel_symmetric"),
)
"""QConfig of 16 bits: activations affine, weights symmetric per output channel; nothing need be cut off."""
