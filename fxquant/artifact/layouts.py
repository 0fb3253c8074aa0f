"""How the tensors of a model lie in a file: once, as another one, packed, with their dimensions in another order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fxquant.artifact.format import Header
from fxquant.artifact.packing import check_packed, unpacked
from fxquant.artifact.plan import is_of_plan
from fxquant.errors import ArtifactError

_LEAST = 128
"""Bytes that a small tensor takes in memory at least."""


def check_stored(header: Header, layouts: Any, names: Mapping[str, str]) -> None:
    """Refuse a file unless each tensor of a module is stored once, or is one that is, and nothing else is stored."""
    if not isinstance(layouts, dict):
        raise ArtifactError("the file does not say how its tensors lie")
    # Qparams that the plan and a module have in common are stored under the name of the module.
    aliases = {name for name, layout in layouts.items() if isinstance(layout, str)}
    of_plan = {name for name in aliases if is_of_plan(name)} if header.format > 2 else set()
    _check_same(header, {name: layouts[name] for name in of_plan}, layouts)
    # What is stored, or is said to be what is stored, are the tensors of the modules.
    aliases -= of_plan
    stored = {name for name in header.tensors if not name.startswith("#")}
    if different := sorted((stored | aliases) ^ set(names)) or sorted(stored & aliases):
        raise ArtifactError("the file holds other tensors than its modules have", got=ascii(different[:3]))
    # Each layout is the name of a stored tensor, an order of dimensions, or says how a tensor was packed.
    for name, layout in layouts.items():
        if name in of_plan:
            continue
        if isinstance(layout, str):
            if layout not in stored:
                raise ArtifactError("a tensor is said to be another one that is not there", at=name)
            continue
        if name not in header.tensors:
            raise ArtifactError("a tensor is said to lie in some order, and is not there", at=name)
        order, dimensions = layout, len(header.tensors[name].shape)
        if isinstance(layout, dict):
            check_packed(layout, header.tensors[name], name)
            order, dimensions = layout["order"], len(layout["shape"])
        if not _is_order(order, dimensions) and not (order is None and isinstance(layout, dict)):
            raise ArtifactError("a tensor lies in no order of its dimensions", at=name, got=ascii(layout)[:80])


def _check_same(header: Header, same: Mapping[str, str], layouts: Mapping[str, Any]) -> None:
    """Refuse qparams of the plan that are said to be those of another tensor, and are not, or fill the memory."""
    size = 0
    for name, other in same.items():
        if name in header.tensors or other not in header.tensors or other in layouts:
            raise ArtifactError("a tensor is said to be another one that is not there", at=name)
        size += max(_LEAST, header.tensors[other].end - header.tensors[other].begin)
    if size > header.size:
        raise ArtifactError(
            "the file wants more memory than it is long",
            got=f"{size:,} bytes for qparams that it holds once",
            expected=f"at most {header.size:,}",
        )


def _is_order(layout: Any, dimensions: int) -> bool:
    return isinstance(layout, list) and all(type(n) is int for n in layout) and sorted(layout) == [*range(dimensions)]


def in_their_order(
    stored: Mapping[str, Tensor], layouts: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Turn tensors to the order that they had in memory; one that several modules hold is one parameter."""
    found = dict(stored)
    for name, layout in layouts.items():
        if isinstance(layout, dict):
            found[name] = unpacked(layout, stored[name])
        order = layout["order"] if isinstance(layout, dict) else layout
        if isinstance(order, list):
            found[name] = found[name].permute([order.index(axis) for axis in range(len(order))])
    for name, layout in layouts.items():
        if isinstance(layout, str) and is_of_plan(name):
            found[name] = stored[layout].clone()  # what is loaded into the module later is not the plan's
        elif isinstance(layout, str):
            if names[layout] in ("parameter", "frozen") and not isinstance(found[layout], nn.Parameter):
                found[layout] = nn.Parameter(found[layout], requires_grad=names[layout] == "parameter")
            found[name] = found[layout]
    return found
