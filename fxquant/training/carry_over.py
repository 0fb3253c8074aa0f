"""Carries over to a trainable graph what the user has set on the model: modes, gradient hooks, the order of names."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.fx import GraphModule

from fxquant.capture.copies import trained_copy
from fxquant.capture.exported.branches import Branches
from fxquant.capture.hooks import carry_over_gradient_hooks
from fxquant.errors import listing, warn
from fxquant.graph.edit import order_alike
from fxquant.graph.module import set_metadata
from fxquant.graph.query import move_to_device_of, qualified_name
from fxquant.nn.training import freeze_what_keeps_statistics, keep_frozen_state


def carry_over(model: nn.Module, trainable: GraphModule) -> None:
    """Make ``trainable`` train as ``model`` does, which is not changed, and warn of the parameters that it lacks."""
    move_to_device_of(trainable, model)
    for module, trains in _modes(model, trainable):
        module.training = trains
    if (trained := trained_copy(model)) is not None:
        paths = {module: path for path, module in trainable.named_modules()}
        kept = [paths[module] for module, trains in _modes(trained, trainable) if not trains]
        set_metadata(trainable, in_evaluation=tuple(kept))
    order_alike(trainable, model)
    trainable.apply(freeze_what_keeps_statistics)
    trainable.apply(keep_frozen_state)
    carry_over_gradient_hooks(model, trainable)
    _warn_of_left_out(model, trainable)


def _modes(model: nn.Module, trainable: GraphModule) -> Iterator[tuple[nn.Module, bool]]:
    """Yield modules of ``trainable`` and their modes in ``model``; what passes have made has that of its origin."""
    modes = {name: module.training for name, module in model.named_modules()}
    made_of = {str(node.target): qualified_name(node) for node in trainable.graph.nodes if node.op == "call_module"}
    for name, module in trainable.named_modules():
        if name not in modes:
            name = made_of.get(name, name)
        while name not in modes:
            name = name.rpartition(".")[0]
        yield module, modes[name]


def _warn_of_left_out(model: nn.Module, trainable: nn.Module) -> None:
    """Name the parameters that trained before, and no longer do."""
    kept = {name for name, _ in trainable.named_parameters(remove_duplicate=False)}
    branches = [inner for module in trainable.modules() if isinstance(module, Branches) for inner in module.children()]
    kept |= {name for inner in branches for name, _ in inner.named_parameters(remove_duplicate=False)}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
    left_out = [tied[0] for tied in names.values() if kept.isdisjoint(tied)]
    if left_out:
        warn(
            "parameters of the model are not in the graph of evaluation mode, and will not be trained",
            got=listing(left_out),
            hint="heads that only training runs are left out; what forward makes a number (by item()) is fixed",
        )
