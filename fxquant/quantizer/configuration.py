"""The first step: what the user asked for, checked and with the defaults filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxquant.backends.base import backend_of
from fxquant.errors import DuplicateNameError, InputError, SpecError, check_type
from fxquant.fake_quantize.defaults import get_default_qat_qconfig_mapping
from fxquant.graph.inputs import example_tuple
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.passes.qconfig_rules import unused_rules
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.registry import in_own_namespace, known_patterns
from fxquant.plan.qconfig import QConfig, QConfigMapping, UnusedRule
from fxquant.quantizer.checks import checked_model
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.integer_requests import as_inputs, as_outputs


def configure(
    prepared: PreparedModel,
    model: nn.Module | ExportedProgram,
    example_inputs: Any,
    qconfig: QConfig | QConfigMapping | None,
    *,
    example_kwargs: Mapping[str, Any] | None,
    backend: str,
    patterns: Sequence[Pattern] | None,
    input_observer: Callable[[], Any] | None,
    integer_inputs: bool | str | Sequence[str] = False,
    integer_outputs: bool | int | Sequence[int] = False,
) -> nn.Module:
    """Set what ``prepared`` was asked for, and return the float model. The arguments are the Quantizer's."""
    module = checked_model(model)
    check_type("example_kwargs", example_kwargs, (Mapping, NoneType), "{name: input}, or None")
    check_type("patterns", patterns, (Collection, NoneType), "a list or tuple of Pattern objects, or None")
    prepared.backend = backend_of(backend)
    prepared.config = get_default_qconfig_mapping(backend) if qconfig is None else QConfigMapping.of(qconfig)
    prepared.patterns = known_patterns() if patterns is None else distinct(patterns)
    prepared.has_example = example_inputs is not None or bool(example_kwargs)
    prepared.example_args = example_tuple(example_inputs, example_kwargs) if prepared.has_example else ()
    prepared.example_kwargs = dict(example_kwargs or {})
    prepared.input_observer = checked_input_observer(input_observer)
    prepared.integer_inputs, prepared.integer_outputs = as_inputs(integer_inputs), as_outputs(integer_outputs)
    return module


def checked_input_observer(observer: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """Return the observer, which must choose qparams; or None."""
    if observer is None:
        return None
    qconfig = QConfig(activation=observer, weight=observer)
    if qconfig.activation_scheme is None or qconfig.is_dynamic:
        raise SpecError(
            "input_observer chooses no qparams",
            got=repr(observer),
            expected="an observer that measures, such as MinMaxObserver",
        )
    return observer


def distinct(patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """Plans look patterns up by name, so two of one name cannot be told apart.

    One of the user's own that has the name of a default one beside it is called ``own.NAME``.
    """
    if wrong := [item for item in patterns if not isinstance(item, Pattern)]:
        raise InputError("patterns holds something that is no Pattern", got=repr(wrong[0]), expected="Pattern objects")
    names = Counter(pattern.name for pattern in patterns)
    patterns = [in_own_namespace(pattern) if names[pattern.name] > 1 else pattern for pattern in patterns]
    names = Counter(pattern.name for pattern in patterns)
    if twice := [name for name, count in names.items() if count > 1]:
        raise DuplicateNameError("two patterns have the same name", got=", ".join(twice), expected="a name for each")
    return tuple(patterns)


def warn_of_unused_rules(before: Sequence[UnusedRule], gm: GraphModule, config: QConfigMapping, backend: str) -> None:
    """Warn of rules that match nothing: neither in the traced model (``before``), nor in the prepared one.

    A rule may name what only one of them has: an operator that was taken apart, or one of its parts. No warning is
    given of those that the default mapping has: nobody wrote them.
    """
    default = (*get_default_qconfig_mapping(backend).rules(), *get_default_qat_qconfig_mapping(backend).rules())
    after = {(unused.rule.kind, unused.rule.key): unused for unused in unused_rules(gm, config)}
    for unused in before:
        still = after.get((unused.rule.kind, unused.rule.key))
        if unused.rule not in default and still is not None:
            (unused if unused.hint else still).warn()
