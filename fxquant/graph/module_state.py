"""Loads the state of a module: checks it before, and puts everything back on an error."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import FxQuantError, StateError, listing
from fxquant.graph.inputs import describe_value

_PARTS = (".weight_fake_quant", ".activation_post_process")
"""Modules inside a unit, whose state is the unit's."""

WRAPPERS = ("module.", "_orig_mod.")
"""What ``DistributedDataParallel`` and ``torch.compile`` put before every name."""
LEARNED_WEIGHTS = "weight_layers."
"""What the names of the layers begin with whose weights a method has chosen."""

UNWRAP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present"


def check_is_state(given: object) -> None:
    """Refuse what is no state dict.

    Raises:
        StateError: it is something else, such as a path.
    """
    if not isinstance(given, Mapping):
        raise StateError(
            "this is no state dict",
            got=describe_value(given),
            expected="a dict of tensors, as state_dict() gives it",
            hint="torch.load(path) reads one that torch.save wrote" if isinstance(given, (str, os.PathLike)) else "",
        )


def check_names(
    model: nn.Module, given: Mapping[str, Any], *, strict: bool, joins: Mapping[str, str] | None = None
) -> None:
    """Compare the names of a state dict with those of a model, unit by unit. What modules do without may be missing.

    Args:
        model: It is not changed: where names differ, a copy says what it misses.
        given: What is to be loaded.
        strict: False: any names will do.
        joins: Root of each join that the configuration quantizes -> its pattern. Calibration may leave it in float.

    Raises:
        StateError: it names the first unit that differs, what it is in the state dict, and what in the model.
    """
    check_is_state(given)
    own = model.state_dict()
    if not strict or own.keys() == given.keys() or _may_load(model, given):
        return
    here, there = _by_unit(own), _by_unit(given)
    different = [unit for unit in {**here, **there} if here.get(unit) != there.get(unit)]
    if (error := _of_other_joins(joins or {}, here, there)) is not None:
        raise error
    unit = min(different, key=lambda unit: _form(here.get(unit)) == _form(there.get(unit)))
    more = len(different) - 1
    raise StateError(
        "the state dict is that of another model, or of one that was quantized in another way",
        at=f"{repr(unit) if unit else 'the model itself'}{f', and {more} more' if more else ''}",
        got=_described(there.get(unit), here.get(unit)),
        expected=_described(here.get(unit), there.get(unit)),
        hint=_hint(unit, here, there, given) or _hint_by_names(unit, here, there),
    )


def _of_other_joins(joins: Mapping[str, str], here: Mapping[str, Any], there: Mapping[str, Any]) -> StateError | None:
    """Return the error for a state of a model whose calibration left other joins in float; None if it left the same.

    Args:
        joins: Root of each join that the configuration quantizes -> its pattern.
        here, there: The units of the model and of the state.
    """
    own, saved = ({root for root in joins if _has_join(units, root)} for units in (here, there))
    both = here.keys() & there.keys()
    if own == saved or not both or any(_form(here[unit]) != _form(there[unit]) for unit in both):
        return None  # there is more to it: another configuration, a wrapper, a float model
    missing = sorted(own - saved)
    form, other = ("float", "quantized") if missing else ("quantized", "float")
    rule = ""
    if kinds := {joins[root] for root in missing} - {joins[root] for root in saved}:
        calls = "".join(f".set_object_type(torch.{kind}, None)" for kind in sorted(kinds))
        rule = f"; or leave them in float by mapping{calls}"
    return StateError(
        f"the saved model has {form} joins that are {other} here: calibration decides that by the ranges",
        at=listing([repr(root) for root in missing or sorted(saved - own)]),
        got="the state of a model that was calibrated on other data, or this one was not calibrated",
        expected="a model with the same calibration; without any, all joins are quantized",
        hint="load the state of the calibrated Quantizer into the new one, and convert that; or fxq.save the model, "
        f"which keeps the graph, too{rule}",
    )


def _has_join(units: Mapping[str, Any], root: str) -> bool:
    """Tell whether a join is quantized in a model of these units, whatever form it has."""
    return any(f"{root}{suffix}" in units for suffix in ("", "_fake_quant", "_quantize"))


def _may_load(model: nn.Module, given: Mapping[str, Any]) -> bool:
    """Tell whether the modules accept a state of other names all the same: an older one, say."""
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
    """Classify a unit by the names of its state: absent, float, fake_quant or int8."""
    if names is None:
        return "absent"
    if any(name.startswith("weight_fake_quant.") or name.endswith("_enabled") for name in names):
        return "fake_quant"
    return "int8" if any(name.endswith("_scale") for name in names) else "float"


def _described(names: frozenset[str] | None, other: frozenset[str] | None) -> str:
    """Describe the kind of a unit, and the part of its state that the other lacks."""
    if names is None:
        return "nothing of that name"
    more = sorted(names - (other or frozenset()))
    if other is None and _form(names) == "float":
        return ", ".join(more)
    return f"{_form(names)}{', with ' if more else ''}{', '.join(more)}"


def _hint(unit: str, here: Mapping[str, Any], there: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    for prefix in WRAPPERS:
        if given and all(name.startswith(prefix) for name in given):
            return f"{UNWRAP}(state, {prefix!r}) takes what a wrapper put before the names away"
    forms = [{_form(names) for names in units.values()} for units in (here, there)]
    if forms[1] == {"float"} and forms[0] != {"float"}:
        return "this is the state of a float model: load it into that, then prepare, calibrate and convert"
    if unit.startswith(LEARNED_WEIGHTS):
        return "weights that adaround, gptq or correct_statistics chose are in no state: use fxq.save(quantizer, path)"
    for form in ("fake_quant", "int8"):
        if form in forms[1] and form not in forms[0]:
            return f"it was saved of to={form!r}: convert(prepared, to={form!r}, allow_uncalibrated=True) takes it"
    if (_form(there.get(unit)), _form(here.get(unit))) == ("float", "int8"):
        return f"mapping.set_module_name({unit!r}, None) leaves it in float, as the saved model did"
    if (_form(there.get(unit)), _form(here.get(unit))) == ("int8", "float"):
        return f"quantize {unit!r}, as the saved model did: a rule of the configuration leaves it in float"
    return ""


def _hint_by_names(unit: str, here: Mapping[str, frozenset[str]], there: Mapping[str, frozenset[str]]) -> str:
    """Say what to do with a state that has all that the model has, and float entries beside it, or what else to do."""
    lacks_nothing = all(names <= there.get(path, frozenset()) for path, names in here.items())
    if lacks_nothing and not here.get(unit) and _form(there.get(unit)) == "float":
        return "load_state_dict(state, strict=False) leaves out what the model does not have"
    return "prepare with the configuration that the saved model was prepared with"


_LISTS = (list, deque)
_CONTAINERS = (*_LISTS, dict, set)
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_buffers", "_parameters"}


@contextmanager
def undone_on_error(holders: Sequence[object], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put back, if the body raises, the attributes of ``holders`` and the values of ``tensors``.

    Of attributes that are lists, dicts or sets the items are put back, of a module's buffers and of attributes that are
    tensors the values, in the memory that they have. So is the class of a module.

    Args:
        holders: Modules, each by itself without those inside it, and other objects.
        tensors: What else may be written to.
    """
    # Note classes, attributes, the contents of containers, and values.
    classes = [(holder, type(holder)) for holder in holders if isinstance(holder, nn.Module)]
    attributes = [(held, dict(held)) for holder in holders if (held := getattr(holder, "__dict__", None)) is not None]
    contents = []
    found = list(tensors)
    for _, before in attributes:
        found += [buffer for buffer in before.get("_buffers", {}).values() if buffer is not None]
        for name, value in before.items():
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, _CONTAINERS) and name not in _OF_EVERY_MODULE:
                contents.append((value, copy.copy(value)))
    values = [(tensor, tensor.detach().clone()) for tensor in found]
    try:
        yield
    except BaseException:
        # Put all of it back.
        for tensor, value in values:
            _restore(tensor, value)
        for container, items in (*attributes, *contents):
            _refill(container, items)
        for module, kind in classes:
            if type(module) is not kind:
                module.__class__ = kind
        raise


@contextmanager
def values_undone(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put the values of tensors back when the body ends, whether it raises or not."""
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in values:
            _restore(tensor, value)


def unchanged_on_error(model: nn.Module) -> AbstractContextManager[None]:
    """Put back all of a model if the body raises; until then its tensors lie in memory twice."""
    return undone_on_error(tuple(model.modules()), tuple(model.parameters()))


def _restore(tensor: Tensor, value: Tensor) -> None:
    """Write a value back. What has another shape now gets other memory; of the rest, others may know where it lies."""
    if tensor.shape == value.shape and tensor.dtype == value.dtype and not tensor.is_inference():
        with torch.no_grad():
            tensor.copy_(value)
    else:
        tensor.data = value


def _refill(container: Any, items: Iterable[Any]) -> None:
    container.clear()
    (container.extend if isinstance(container, _LISTS) else container.update)(items)
