"""From rules as torch.ao writes them to those of fxquant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from fxquant.compat.foreign import constructor_of
from fxquant.compat.observer_classes import PlaceholderObserver, ReuseInputObserver
from fxquant.errors import InputError
from fxquant.plan.qconfig import QConfig, QConfigMapping

KINDS = ("object_type", "module_name_regex", "module_name", "module_name_object_type_order")


def mapping_of(rules: Any, *, outputs: bool = True) -> QConfigMapping:
    """Return the rules of fxquant that say what those of torch.ao say.

    Args:
        rules: A ``QConfigMapping`` of this package or of torch.ao, or the dict form of one.
        outputs: Whether what the model returns is rounded as any other value, as torch.ao does.

    Raises:
        InputError: it is none of these.
        SpecError: a QConfig in it makes no observers.
    """
    rules = rules_of(rules)
    known: dict[int, QConfig | None] = {}
    usual = next((q for q in _qconfigs(rules) if not _reuses(q)), None)

    def translated(qconfig: Any) -> QConfig | None:
        if _reuses(qconfig):
            qconfig = usual
        if id(qconfig) not in known:
            known[id(qconfig)] = qconfig_of(qconfig, outputs=outputs)
        return known[id(qconfig)]

    mapping = QConfigMapping().set_global(translated(rules.get("")))
    if unknown := set(rules) - {"", *KINDS}:
        raise InputError("unknown kind of rule", got=", ".join(sorted(unknown)), expected=", ".join(("''", *KINDS)))
    for kind in KINDS:
        setter: Any = getattr(mapping, f"set_{kind}")
        for *key, qconfig in rules.get(kind, ()):
            setter(*key, translated(qconfig))
    return mapping


def qconfig_of(qconfig: Any, *, outputs: bool = True) -> QConfig | None:
    """Return the QConfig of fxquant that says what one of torch.ao says; of fxquant's own, itself."""
    if qconfig is None or isinstance(qconfig, QConfig):
        return qconfig
    activation, weight = constructor_of(qconfig.activation), constructor_of(qconfig.weight)
    made_activation = activation()
    if made_activation.scheme is None and getattr(made_activation, "is_dynamic", False):
        activation = PlaceholderObserver  # float16, which stays float
    made = QConfig(activation=activation, weight=weight)
    if outputs and made.activation_scheme is not None and not made.is_dynamic:
        return QConfig(activation=activation, weight=weight, output=activation)
    return made


def _qconfigs(rules: Mapping[str, Any]) -> list[Any]:
    return [q for q in (rules.get(""), *(rule[-1] for kind in KINDS for rule in rules.get(kind, ()))) if q is not None]


def _reuses(qconfig: Any) -> bool:
    maker = getattr(qconfig, "activation", None)
    inner = getattr(getattr(maker, "p", None), "func", maker)
    return inner is ReuseInputObserver or getattr(inner, "__name__", "") == "ReuseInputObserver"


def original_qconfig(rules: Mapping[str, Any], path: str, kind: type) -> Any:
    """Return the QConfig, as it was written, that decides for the module of a path and a class."""
    names = dict(rules.get("module_name", ()))
    parent = path
    while parent:
        if parent in names:
            return names[parent]
        parent = parent.rpartition(".")[0]
    for regex, qconfig in rules.get("module_name_regex", ()):
        if re.match(regex, path):
            return qconfig
    return dict(rules.get("object_type", ())).get(kind, rules.get(""))


def rules_of(rules: Any) -> Mapping[str, Any]:
    """Return the dict form of a ``QConfigMapping`` of this package or of torch.ao; a dict as it is.

    Raises:
        InputError: it is neither.
    """
    if isinstance(rules, Mapping):
        return rules
    if not callable(getattr(rules, "to_dict", None)):
        raise InputError(
            "not a configuration",
            got=type(rules).__name__,
            expected="a QConfigMapping, or its dict form",
            hint="QConfigMapping().set_global(qconfig) is one for the whole model",
        )
    found: Mapping[str, Any] = rules.to_dict()
    return found


def note_qconfigs(target: nn.Module, model: nn.Module, rules: Mapping[str, Any]) -> None:
    """Set the attribute ``qconfig`` of the modules that ``model`` has under the same names: programs read it."""
    kinds = {path: type(module) for path, module in model.named_modules()}
    for path, module in target.named_modules():
        if path and path in kinds:
            vars(module)["qconfig"] = original_qconfig(rules, path, kinds[path])
