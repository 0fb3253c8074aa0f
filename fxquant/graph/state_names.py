"""Tells where a state dict first differs from the model that it is loaded into, before anything is loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from fxquant.errors import FxQuantError, StateError

_PARTS = (".weight_fake_quant", ".activation_post_process")
"""Modules inside a unit, whose state is the unit's."""

WRAPPERS = ("module.", "_orig_mod.")
"""What ``DistributedDataParallel`` and ``torch.compile`` put before every name."""

UNWRAP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present"


def check_names(model: nn.Module, given: Mapping[str, Any], *, strict: bool) -> None:
    """Compare the names of a state dict with those of a model, unit by unit. What modules do without may be missing.

    Args:
        model: It is not changed: where names differ, a copy says what it misses.
        given: What is to be loaded.
        strict: False: any names will do.

    Raises:
        StateError: it names the first unit that differs, what it is in the state dict, and what in the model.
    """
    own = model.state_dict()
    if not strict or own.keys() == given.keys() or _may_load(model, given):
        return
    here, there = _by_unit(own), _by_unit(given)
    different = [unit for unit in {**here, **there} if here.get(unit) != there.get(unit)]
    unit = min(different, key=lambda unit: _form(here.get(unit)) == _form(there.get(unit)))
    more = len(different) - 1
    raise StateError(
        "the state dict is that of another model, or of one that was quantized in another way",
        at=f"{unit!r}{f', and {more} more' if more else ''}",
        got=_described(there.get(unit), here.get(unit)),
        expected=_described(here.get(unit), there.get(unit)),
        hint=_hint(unit, here, there, given),
    )


def _may_load(model: nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether modules take a state of other names all the same: an older one, say."""
    try:
        found = nn.Module.load_state_dict(copy.deepcopy(model), given, strict=False)
    except (RuntimeError, FxQuantError):  # of other shapes or values, too
        return False
    return not found.missing_keys and not found.unexpected_keys


def _by_unit(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Path of a module -> the names of its state."""
    found: dict[str, set[str]] = {}
    for name in names:
        unit = name.rpartition(".")[0]
        for part in _PARTS:
            unit = unit.partition(part)[0]
        found.setdefault(unit, set()).add(name.removeprefix(f"{unit}."))
    return {unit: frozenset(inside) for unit, inside in found.items()}


def _form(names: frozenset[str] | None) -> str:
    """What a unit with such a state is."""
    if names is None:
        return "absent"
    if any(name.startswith("weight_fake_quant.") or name.endswith("_enabled") for name in names):
        return "fake_quant"
    return "int8" if any(name.endswith("_scale") for name in names) else "float"


def _described(names: frozenset[str] | None, other: frozenset[str] | None) -> str:
    """What a unit is, and what of its state the other has not."""
    if names is None:
        return "nothing of that name"
    more = sorted(names - (other or frozenset()))
    return f"{_form(names)}{', with ' if more else ''}{', '.join(more)}"


def _hint(unit: str, here: Mapping[str, Any], there: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    for prefix in WRAPPERS:
        if given and all(name.startswith(prefix) for name in given):
            return f"{UNWRAP}(state, {prefix!r}) takes what a wrapper put before the names away"
    forms = [{_form(names) for names in units.values()} for units in (here, there)]
    if forms[1] == {"float"} and forms[0] != {"float"}:
        return "this is the state of a float model: load it into that, then prepare, calibrate and convert"
    for form in ("fake_quant", "int8"):
        if form in forms[1] and form not in forms[0]:
            return f"it was saved of to={form!r}: convert(prepared, to={form!r}, allow_uncalibrated=True) takes it"
    if (_form(there.get(unit)), _form(here.get(unit))) == ("float", "int8"):
        return f"mapping.set_module_name({unit!r}, None) leaves it in float, as the saved model did"
    if (_form(there.get(unit)), _form(here.get(unit))) == ("int8", "float"):
        return f"quantize {unit!r}, as the saved model did: a rule of the configuration leaves it in float"
    return "prepare with the configuration that the saved model was prepared with"
