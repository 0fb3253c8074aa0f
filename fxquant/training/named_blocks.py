"""Blocks that the user asks for: those that are found, single units, or modules by their names."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from fxquant.errors import InputError, UnknownNameError, listing
from fxquant.registry import did_you_mean
from fxquant.training.blocks import Block, Cutter

CHOICES = ("auto", "unit")


def chosen_blocks(cutter: Cutter, blocks: str | Sequence[str]) -> list[Block]:
    """Return the blocks of a simulation that ``reconstruct`` is asked for.

    Args:
        cutter: Of the simulation.
        blocks: ``"auto"``, ``"unit"``, or paths of modules.

    Raises:
        InputError, UnknownNameError: blocks cannot be what was asked for.
    """
    if isinstance(blocks, str):
        if blocks not in CHOICES:
            expected = f"{', '.join(map(repr, CHOICES))}, or a list of paths of modules"
            raise UnknownNameError("unknown choice of blocks", got=repr(blocks), expected=expected)
        return cutter.automatic() if blocks == "auto" else cutter.by_units()
    if not isinstance(blocks, (list, tuple)) or not blocks or not all(isinstance(name, str) for name in blocks):
        expected = f"a list of paths, {' or '.join(map(repr, CHOICES))}"
        raise InputError("blocks are no paths of modules", got=repr(blocks), expected=expected)
    return named_blocks(cutter, blocks)


def named_blocks(cutter: Cutter, names: Sequence[str]) -> list[Block]:
    """Return a block for each name: the units below the module. ``cutter`` orders their nodes side by side then.

    Args:
        cutter: Of the simulation.
        names: Paths of modules.

    Raises:
        InputError: two of them overlap; or values go into one, or come out of it, at several places.
        UnknownNameError: no weight lies below one of them.
    """
    paths = {node: cutter.path_of(node) for node in cutter.order}
    found = {name: [node for node in cutter.order if _is_below(paths[node], name)] for name in names}
    for name, nodes in found.items():
        if not cutter.weights_of(nodes):
            known = sorted({paths[cutter.layer(unit)] for unit in cutter.weights_of(cutter.order)})
            raise UnknownNameError(
                "no quantized weight lies below a module of this name", got=repr(name), hint=did_you_mean(name, known)
            )
    taken: dict[Node, str] = {}
    for name, nodes in found.items():
        if other := next((taken[node] for node in nodes if node in taken), None):
            raise InputError("blocks overlap", got=f"{other!r} and {name!r}", expected="modules that lie apart")
        taken |= dict.fromkeys(nodes, name)
    for name, nodes in found.items():
        _check_ends(cutter, name, nodes)
        cutter.put_together(nodes)
    place = {node: index for index, node in enumerate(cutter.order)}
    return [cutter.block(name, found[name]) for name in sorted(found, key=lambda name: place[found[name][-1]])]


def _is_below(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _check_ends(cutter: Cutter, name: str, nodes: Sequence[Node]) -> None:
    inside = {*nodes}
    read = {n for node in nodes for n in node.all_input_nodes if n not in inside and n in cutter.dependent}
    given = [node for node in nodes if any(user not in inside for user in node.users)]
    split = [unit.root for unit in cutter.units_of(nodes) if not inside.issuperset(cutter.members(unit))]
    if len(read) > 1 or len(given) != 1 or given[0] is not nodes[-1] or split:
        crossing = [f"{node.name} goes in" for node in cutter.order if node in read]
        crossing += [f"{node.name} comes out" for node in given]
        crossing += [f"the unit {root} lies only partly inside" for root in split]
        raise InputError(
            "a block has one input and one output",
            at=name,
            got=listing(crossing),
            expected="a module through which all values go in at one place and come out at one",
        )
