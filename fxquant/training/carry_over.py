"""Carries over to a trainable graph what the user has set on the model: modes, gradient hooks, the order of names."""

from __future__ import annotations

from torch import nn

from fxquant.capture.exported.branches import Branches
from fxquant.capture.hooks import carry_over_gradient_hooks
from fxquant.errors import listing, warn
from fxquant.graph.edit import order_alike
from fxquant.graph.query import move_to_device_of
from fxquant.nn.training import keep_frozen_state


def carry_over(model: nn.Module, trainable: nn.Module) -> None:
    """Make ``trainable`` train as ``model`` does, which is not changed, and warn of the parameters that it lacks."""
    move_to_device_of(trainable, model)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in trainable.named_modules():
        while name not in modes:  # a module that passes have made has the mode of the one that it is in
            name = name.rpartition(".")[0]
        module.training = modes[name]
    order_alike(trainable, model)
    trainable.apply(keep_frozen_state)
    carry_over_gradient_hooks(model, trainable)
    _warn_of_left_out(model, trainable)


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
