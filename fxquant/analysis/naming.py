"""Names units in reports: by the user's module, and where that is not enough, by the value too."""

from __future__ import annotations

from torch.fx import Node

from fxquant.graph.query import WEIGHT, module_path


def path_of(layer: Node) -> str:
    """Path of the user's module, or of the weight that a function took; empty at top level."""
    return str(layer.meta.get(WEIGHT) or module_path(layer)[0])


def title_of(layer: Node, value: str) -> str:
    """Return the path where it is that of a layer; else also which value in it."""
    path = path_of(layer)
    if not path:
        return value
    is_layer = module_path(layer)[1] is not None or WEIGHT in layer.meta
    return path if is_layer else f"{path} ({value})"
