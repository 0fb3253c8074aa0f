"""Submodules with a preparation of their own: standalone ones, and those with classes for each stage."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from fxquant.compat.configuration import original_qconfig
from fxquant.compat.foreign import constructor_of
from fxquant.errors import NotOffered, UnknownNameError

_OBSERVER = "activation_post_process"

PrepareOne = Callable[[nn.Module, Any, Any, Any, Any], nn.Module]


def prepare_submodules(
    model: nn.Module, custom: Any, rules: Mapping[str, Any], backend: Any, prepare: PrepareOne
) -> tuple[nn.Module, tuple[Any, ...]]:
    """Prepare on their own the submodules that a ``PrepareCustomConfig`` names.

    Args:
        model: It is not changed.
        custom: The configuration.
        rules: The dict form of the rules of the whole model.
        backend: Its ``BackendConfig``.
        prepare: Prepares one, with rules, example inputs, a configuration, a back end.

    Returns:
        A copy of the model with these in place, and what stays whole in it: paths and classes.

    Raises:
        UnknownNameError: a name that the model does not have.
    """
    whole = (*custom.non_traceable_module_names, *custom.non_traceable_module_classes)
    entries = _standalone(model, custom)
    observed_classes = {
        kind: made for found in custom.float_to_observed_mapping.values() for kind, made in found.items()
    }
    custom_paths = [path for path, module in model.named_modules() if type(module) in observed_classes]
    if not entries and not custom_paths:
        return model, whole
    model = copy.deepcopy(model)
    for path, entry in entries.items():
        own_rules = rules if entry.qconfig_mapping is None else entry.qconfig_mapping
        own_backend = backend if entry.backend_config is None else entry.backend_config
        child = model.get_submodule(path)
        model.set_submodule(
            path, prepare(child, own_rules, entry.example_inputs, entry.prepare_custom_config, own_backend)
        )
    for path in custom_paths:
        child = model.get_submodule(path)
        found = original_qconfig(rules, path, type(child))
        if found is not None:
            vars(child)["qconfig"] = found
            observed = observed_classes[type(child)].from_float(child).train(child.training)
            model.set_submodule(path, _with_observer(observed, found))
    return model, (*whole, *entries, *custom_paths)


def _with_observer(observed: nn.Module, qconfig: Any) -> nn.Module:
    """Let a custom module measure what it gives, in the child that torch.ao attaches, which ``from_observed`` reads."""
    made = constructor_of(qconfig.activation)()
    if made.scheme is not None and not getattr(made, "is_dynamic", False) and not hasattr(observed, _OBSERVER):
        observed.add_module(_OBSERVER, made.train(observed.training))
        observed.register_forward_hook(_measure)
    return observed


def _measure(module: nn.Module, inputs: Any, result: Any) -> None:
    if isinstance(result, Tensor):
        module.get_submodule(_OBSERVER)(result)


def _standalone(model: nn.Module, custom: Any) -> dict[str, Any]:
    paths = dict(model.named_modules())
    found = {
        path: custom.standalone_module_classes[type(module)]
        for path, module in paths.items()
        if type(module) in custom.standalone_module_classes
    }
    for path, entry in custom.standalone_module_names.items():
        if path not in paths:
            raise UnknownNameError("the model has no submodule of this name", got=repr(path), expected=", ".join(paths))
        found[path] = entry
    return found


def convert_submodules(model: nn.Module, custom: Any, convert: Callable[[Any], nn.Module], is_prepared: Any) -> None:
    """Convert, in place, the submodules of a model that were prepared on their own."""
    kinds = {kind: made for found in custom.observed_to_quantized_mapping.values() for kind, made in found.items()}
    for path, module in list(model.named_modules()):
        if not path:
            continue
        if is_prepared(module):
            model.set_submodule(path, convert(module))
        elif type(module) in kinds:
            try:
                model.set_submodule(path, kinds[type(module)].from_observed(module))
            except AssertionError as error:
                raise NotOffered(
                    "a custom module asks for an observer that was never attached to it",
                    at=path,
                    got=f"{kinds[type(module)].__name__}.from_observed: {error}",
                    hint="an observed class owns the observers that its quantized class reads",
                ) from error
