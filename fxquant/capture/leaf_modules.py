"""Decides which modules of a model stay whole, as one node, and which are traced through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.capture.hooks import is_traced_through
from fxquant.errors import InputError, TracingError, UnknownNameError, listing
from fxquant.graph.constants import TensorComputation
from fxquant.graph.module import NamedGraphModule
from fxquant.graph.query import BY_REQUEST, CALLED, NAMED, REASON, canonical_type, has_hooks, own_forward
from fxquant.registry import did_you_mean

LeafModules = Sequence[type[nn.Module] | str]
"""Types (subclasses too) or qualified names of modules that the user wants to be kept whole and in float."""

TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Traced through: they are made of layers."""


class LeafPolicy:
    """Tells which modules stay whole: those that the user or a pattern names, and layers of ``torch.nn``."""

    def __init__(self, leaf_modules: LeafModules, leaf_types: Sequence[type[nn.Module]]) -> None:
        self._names = {item for item in leaf_modules if isinstance(item, str)}
        self._classes = tuple(item for item in leaf_modules if not isinstance(item, str))
        self._types = {*leaf_types}

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Tell whether the call of a module becomes one node."""
        if path in self._names or isinstance(module, (*self._classes, TensorComputation)):
            return True
        if own_forward(module) is not None:
            return False
        if type(module) in self._types:
            return True
        if is_traced_through(module):
            return False
        kind = canonical_type(module)
        if kind is not None:
            return not issubclass(kind, (nn.Sequential, *TRANSFORMERS))
        return type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.Sequential)


def check_leaf_modules(model: nn.Module, leaf_modules: LeafModules) -> None:
    """Refuse what names no module of a model.

    Raises:
        UnknownNameError: the model has no module of that name or type.
        InputError: it is neither a name nor a type.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    names = [name for name in modules if name]
    for item in leaf_modules:
        if isinstance(item, str) and item not in modules:
            raise UnknownNameError(
                "leaf_modules names a module that the model does not have",
                got=repr(item),
                expected="the qualified name of a submodule, as model.named_modules() gives it",
                hint=did_you_mean(item, names) or f"the model has {', '.join(names[:8])}{', …' * (len(names) > 8)}",
            )
        if not isinstance(item, (str, type)):
            raise InputError(
                "leaf_modules holds something that is neither a type nor a name",
                got=repr(item),
                expected='module types or qualified names: leaf_modules=(Gate, "layer1.gate")',
            )
        if isinstance(item, type) and not any(isinstance(module, item) for module in modules.values()):
            types = {type(module).__name__: module for module in modules.values()}
            raise UnknownNameError(
                "leaf_modules names a type that the model does not have",
                got=item.__name__,
                expected="the type of a submodule",
                hint=did_you_mean(item.__name__, types) or f"the model has {', '.join(list(types)[:8])}",
            )


def check_taken(gm: GraphModule, leaf_modules: LeafModules) -> None:
    """Refuse a graph of ``torch.export``, and to keep whole what a graph has taken apart.

    Raises:
        TracingError: the graph calls the operators of ATen, which no pattern names.
        InputError: ``leaf_modules`` names a module that is no call of the graph.
    """
    low = [node for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    if any(node.target.namespace == "aten" for node in low) and not isinstance(gm, NamedGraphModule):
        raise TracingError(
            "the model is a graph of torch.export, which calls operators of ATen in place of modules",
            got=listing(list(dict.fromkeys(str(node.target) for node in low))[:5]),
            expected="a torch.nn.Module, or a GraphModule of torch.fx.symbolic_trace",
            hint="give the ExportedProgram, its module(), or the model that torch.export.export was given",
        )
    paths = [str(node.target) for node in gm.graph.nodes if node.op == "call_module"]
    called = {path: gm.get_submodule(path) for path in paths}
    for item in leaf_modules:
        if item in called or (isinstance(item, type) and any(isinstance(each, item) for each in called.values())):
            continue
        raise InputError(
            "the model is traced already, and its graph has taken apart what leaf_modules names",
            got=repr(item) if isinstance(item, str) else item.__name__,
            expected="a module that the graph calls",
            hint="give the model that was traced, or trace it with a Tracer whose is_leaf_module keeps that whole",
        )


def mark_module_calls(
    gm: GraphModule,
    leaf_modules: LeafModules,
    leaf_types: Sequence[type[nn.Module]],
    untraceable: Mapping[str, str],
) -> None:
    """Note at each call of a module which module of the user's it is, and why it stays float if it does."""
    classes = tuple(item for item in leaf_modules if not isinstance(item, str))
    for node in gm.graph.nodes:
        if node.op != "call_module":
            continue
        module = gm.get_submodule(node.target)
        node.meta.setdefault(CALLED, (node.target, type(module)))
        if node.target in leaf_modules or isinstance(module, classes):
            node.meta[REASON] = "kept whole and in float by leaf_modules"
            node.meta[BY_REQUEST] = True
        elif node.target in untraceable:
            node.meta[REASON] = untraceable[node.target]
        elif has_hooks(module):
            node.meta[REASON] = "it has hooks, which only a float module runs"
        if type(module) in leaf_types and getattr(nn, type(module).__name__, None) is not type(module):
            node.meta[NAMED] = True
