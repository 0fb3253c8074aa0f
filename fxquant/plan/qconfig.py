"""Configures quantization: QConfig for one operator, QConfigMapping for the parts of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from fxquant.errors import SpecError, warn
from fxquant.graph.inputs import describe_value
from fxquant.plan.spec import CONSTRUCTOR, QScheme, checked_observer
from fxquant.registry import did_you_mean

ObjectType = type | Callable[..., Any] | str
"""What ``set_object_type`` names: a module class (then also all that lies in it), a function, the name of a method."""

RuleKind = Literal["global", "object_type", "module_name_regex", "module_name", "module_name_object_type_order"]
NOTHING_MATCHES = "a rule of the configuration matches nothing in the model"


@dataclass(frozen=True, slots=True)
class QConfig:
    """Configures one operator: the observer of its values and the observer of its weight.

    Each is a constructor (a class of ``fxquant.observers``, or what its ``with_args`` gives), called anew for every
    tensor. Both are called once here, so that a bit width or a range that cannot exist is refused at once.

    Raises:
        SpecError: not a constructor of an observer (an instance, for example); a scheme that cannot exist; an
            activation that is per channel.
    """

    activation: Callable[[], Any]
    weight: Callable[[], Any]
    output: Callable[[], Any] | None = None
    """What measures the values that an operator computes for the model to return. None: they are float, not rounded."""
    correct_bias: bool = False
    """Take out of the bias what rounding the weight adds to the output on average, by the means of the inputs."""
    activation_scheme: QScheme | None = field(init=False, repr=False, compare=False)
    """The scheme that ``activation`` asks for; None if it leaves values in float (a placeholder)."""
    weight_scheme: QScheme | None = field(init=False, repr=False, compare=False)
    """The scheme that ``weight`` asks for; None if it leaves the weight in float."""
    is_dynamic: bool = field(init=False, repr=False, compare=False)
    """Ranges of activations are measured in each call, from its smallest to its largest value."""
    is_per_token: bool = field(init=False, repr=False, compare=False)
    """These ranges are those of each row: of the values along the last dimension."""

    def __post_init__(self) -> None:
        activation = _build(self.activation, "activation")
        is_dynamic = bool(getattr(activation, "is_dynamic", False))
        if is_dynamic and activation.scheme is None:
            what = "a range that is measured at run time is the range of quantized values"
            raise SpecError(what, got=repr(self.activation), expected="an integer dtype")
        object.__setattr__(self, "is_dynamic", is_dynamic)
        object.__setattr__(self, "is_per_token", getattr(activation, "per", "tensor") == "token")
        object.__setattr__(self, "activation_scheme", activation.scheme)
        if self.output is not None and _build(self.output, "output").scheme != activation.scheme:
            raise SpecError(
                "what the model returns has the scheme of other activations",
                got=repr(self.output),
                expected=str(activation.scheme),
            )
        object.__setattr__(self, "weight_scheme", _build(self.weight, "weight").scheme)
        if self.activation_scheme is not None and self.activation_scheme.axis is not None:
            raise SpecError(
                "an activation has one scale for the whole tensor",
                got=f"QConfig(activation={self.activation!r}): {self.activation_scheme}",
                expected="a per tensor observer such as MinMaxObserver; per channel is for weights",
            )


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a ``QConfigMapping``. Printed as the call that made it, for messages and tables."""

    kind: RuleKind
    key: Any
    """None for the global rule; else the type, regex or name; ``(name, type, index)`` for the last kind."""
    qconfig: QConfig | None

    def __str__(self) -> str:
        keys = () if self.kind == "global" else self.key if isinstance(self.key, tuple) else (self.key,)
        shown = [repr(key) if isinstance(key, str | int) else _name(key) for key in keys]
        return f"set_{self.kind}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class UnusedRule:
    """A rule that matches nothing in the model."""

    rule: Rule
    hint: str = ""

    def warn(self) -> None:
        """Give a warning for it."""
        warn(NOTHING_MATCHES, got=self.rule, hint=self.hint)


class QConfigMapping:
    """Rules that say how each part of a model is quantized.

    A later kind wins over an earlier one, whatever the order of the calls: ``set_global``, ``set_object_type``,
    ``set_module_name_regex``, ``set_module_name``, ``set_module_name_object_type_order``. ``None`` leaves in float.
    Within a kind, setting the same key again replaces what was set before. Every method returns the mapping, so that
    calls can be chained.

    Example:
        >>> import torch
        >>> from fxquant.observers import get_default_qconfig
        >>> rules = (
        ...     QConfigMapping()
        ...     .set_global(get_default_qconfig())
        ...     .set_object_type(torch.nn.Linear, None)
        ...     .set_module_name("head", get_default_qconfig())
        ... )
        >>> print(rules.resolve("body.0", [torch.nn.Linear]))
        set_object_type(Linear)
        >>> print(rules.resolve("head.fc", [torch.nn.Linear]))
        set_module_name('head')
    """

    def __init__(self) -> None:
        self.global_qconfig: QConfig | None = None
        self.object_type_qconfigs: dict[ObjectType, QConfig | None] = {}
        self.module_name_regex_qconfigs: dict[str, QConfig | None] = {}
        self.module_name_qconfigs: dict[str, QConfig | None] = {}
        self.module_name_object_type_order_qconfigs: dict[tuple[str, ObjectType, int], QConfig | None] = {}

    @classmethod
    def of(cls, qconfig: QConfig | QConfigMapping) -> QConfigMapping:
        """``qconfig`` itself if it is a mapping, else a mapping whose global rule it is.

        Raises:
            SpecError: it is neither.
        """
        if isinstance(qconfig, QConfig):
            return cls().set_global(qconfig)
        if isinstance(qconfig, cls):
            return qconfig
        hint = "example_inputs come before qconfig: prepare(model, (x,), qconfig)"
        raise _no_configuration(qconfig, "not a configuration", "a QConfig or a QConfigMapping of fxquant", hint)

    def set_global(self, global_qconfig: QConfig | None) -> QConfigMapping:
        """Set what holds wherever no other rule does."""
        self.global_qconfig = _checked(global_qconfig)
        return self

    def set_object_type(self, object_type: ObjectType, qconfig: QConfig | None) -> QConfigMapping:
        """Set what holds for a module class (and what lies in it), a function, or a method or function by its name.

        All spellings of an operator are meant: ``torch.matmul``, ``"matmul"`` and ``operator.matmul`` are one.
        """
        self.object_type_qconfigs[_checked_type(object_type)] = _checked(qconfig)
        return self

    def set_module_name_regex(self, module_name_regex: str, qconfig: QConfig | None) -> QConfigMapping:
        """Set what holds for modules whose path matches from its start (``re.match``); the first that matches wins.

        Raises:
            SpecError: not a regular expression.
        """
        try:
            re.compile(_checked_name(module_name_regex))
        except re.error as error:
            raise SpecError("not a regular expression", got=repr(module_name_regex), hint=str(error)) from error
        self.module_name_regex_qconfigs[module_name_regex] = _checked(qconfig)
        return self

    def set_module_name(self, module_name: str, qconfig: QConfig | None) -> QConfigMapping:
        """Set what holds for the module of that path and all below it; the longest path that matches wins.

        A function that takes a parameter as its weight goes by the path of that parameter, too.
        """
        self.module_name_qconfigs[_checked_name(module_name)] = _checked(qconfig)
        return self

    def set_module_name_object_type_order(
        self, module_name: str, object_type: ObjectType, index: int, qconfig: QConfig | None
    ) -> QConfigMapping:
        """Set what holds for the ``index``-th use (from 0) of ``object_type`` directly inside the module of that path.

        Raises:
            SpecError: ``index`` is negative or no whole number.
        """
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise SpecError("index counts uses of a type in a module", got=repr(index), expected="0 or more")
        key = (_checked_name(module_name), _checked_type(object_type), index)
        self.module_name_object_type_order_qconfigs[key] = _checked(qconfig)
        return self

    def resolve(
        self,
        module_name: str,
        object_types: Iterable[ObjectType] = (),
        occurrences: Iterable[tuple[str, ObjectType, int]] = (),
        weight: str = "",
    ) -> Rule:
        """Find the rule that decides for one operator.

        Args:
            module_name: Path of the module that the operator is, or, for a function, is called in; ``""`` at the top.
            object_types: All names of the operator (``nn.ReLU``, ``F.relu``, ``"relu"``), the most exact first.
            occurrences: (path of the module in which it is used, type, how many of that type came before it there).
            weight: Path of the parameter that a function takes as its weight: ``F.conv2d(x, self.kernel)`` goes by the
                name ``kernel``, too.

        Returns:
            The rule. ``rule.qconfig`` is None where the operator stays in float.
        """
        for occurrence in occurrences:
            if occurrence in self.module_name_object_type_order_qconfigs:
                qconfig = self.module_name_object_type_order_qconfigs[occurrence]
                return Rule("module_name_object_type_order", occurrence, qconfig)
        for name in (weight, *_path_and_parents(module_name)):
            if name in self.module_name_qconfigs:
                return Rule("module_name", name, self.module_name_qconfigs[name])
        for regex, qconfig in self.module_name_regex_qconfigs.items():
            if re.match(regex, module_name) or (weight and re.match(regex, weight)):
                return Rule("module_name_regex", regex, qconfig)
        for object_type in object_types:
            if object_type in self.object_type_qconfigs:
                return Rule("object_type", object_type, self.object_type_qconfigs[object_type])
        return Rule("global", None, self.global_qconfig)

    def rules(self) -> tuple[Rule, ...]:
        """Return every rule, from the weakest kind to the strongest."""
        return (
            Rule("global", None, self.global_qconfig),
            *(Rule("object_type", key, value) for key, value in self.object_type_qconfigs.items()),
            *(Rule("module_name_regex", key, value) for key, value in self.module_name_regex_qconfigs.items()),
            *(Rule("module_name", key, value) for key, value in self.module_name_qconfigs.items()),
            *(
                Rule("module_name_object_type_order", key, value)
                for key, value in self.module_name_object_type_order_qconfigs.items()
            ),
        )

    def unused_rules(
        self,
        module_names: Iterable[str],
        object_types: Iterable[ObjectType],
        occurrences: Iterable[tuple[str, ObjectType, int]] = (),
    ) -> tuple[UnusedRule, ...]:
        """Return the rules that match nothing in a model, each with the nearest thing that exists.

        A rule that matches something is in use, even where a stronger one decides. The global rule always is.

        Args:
            module_names: Path of every module of the model.
            object_types: Every module class, function and method name that occurs in it.
            occurrences: As for ``resolve``, of all operators.
        """
        names, types, uses = set(module_names), set(object_types), set(occurrences)
        unused = []
        for rule in self.rules():
            if rule.kind == "object_type" and rule.key not in types:
                unused.append(UnusedRule(rule, _hint_for_type(rule.key, types)))
            elif rule.kind == "module_name_regex" and not any(re.match(rule.key, name) for name in names):
                unused.append(UnusedRule(rule, "the expression must match from the start of a module's path"))
            elif rule.kind == "module_name" and rule.key not in names:
                unused.append(UnusedRule(rule, did_you_mean(rule.key, sorted(names))))
            elif rule.kind == "module_name_object_type_order" and rule.key not in uses:
                unused.append(UnusedRule(rule, self._hint_for_order(rule.key, names, uses)))
        return tuple(unused)

    @staticmethod
    def _hint_for_order(
        key: tuple[str, ObjectType, int], names: set[str], uses: set[tuple[str, ObjectType, int]]
    ) -> str:
        name, object_type, _ = key
        if name not in names:
            return did_you_mean(name, sorted(names))
        count = sum((use[0], use[1]) == (name, object_type) for use in uses)
        return f"{_name(object_type)} is used {count} times directly in {name!r}"

    def to_dict(self) -> dict[str, Any]:
        """Give plain lists of tuples under the keys ``""`` (global), ``"object_type"``, ``"module_name_regex"``, ..."""
        return {
            "": self.global_qconfig,
            "object_type": list(self.object_type_qconfigs.items()),
            "module_name_regex": list(self.module_name_regex_qconfigs.items()),
            "module_name": list(self.module_name_qconfigs.items()),
            "module_name_object_type_order": [
                (*key, value) for key, value in self.module_name_object_type_order_qconfigs.items()
            ],
        }

    @classmethod
    def from_dict(cls, rules: Mapping[str, Any]) -> QConfigMapping:
        """Inverse of ``to_dict``; every key may be left out.

        Raises:
            SpecError: a key that does not exist, with the nearest that does.
        """
        mapping = cls()
        setters: dict[str, Callable[..., QConfigMapping]] = {
            "object_type": mapping.set_object_type,
            "module_name_regex": mapping.set_module_name_regex,
            "module_name": mapping.set_module_name,
            "module_name_object_type_order": mapping.set_module_name_object_type_order,
        }
        for key, value in rules.items():
            if key == "":
                mapping.set_global(value)
            elif key in setters:
                for arguments in value:
                    setters[key](*arguments)
            else:
                expected = ", ".join(map(repr, ["", *setters]))
                hint = did_you_mean(key, list(setters))
                raise SpecError("unknown kind of rule", got=repr(key), expected=expected, hint=hint)
        return mapping

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, QConfigMapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a mapping can be changed

    def __repr__(self) -> str:
        return "\n".join(["QConfigMapping:", *(f"  {rule} = {rule.qconfig}" for rule in self.rules())])


def _build(constructor: object, role: str) -> Any:
    """Build one observer, to see that it can be built, and return the ``scheme`` that it asks for, or None."""
    if isinstance(constructor, nn.Module) or not callable(constructor):
        hint = "leave out the call: it is made anew for every tensor" if isinstance(constructor, nn.Module) else ""
        raise SpecError(f"QConfig {role} is no constructor", got=repr(constructor), expected=CONSTRUCTOR, hint=hint)
    try:
        made = constructor()
    except TypeError as error:
        raise SpecError(f"QConfig {role} cannot be built", got=repr(constructor), hint=str(error)) from error
    return checked_observer(made, f"QConfig {role}")


def _checked(qconfig: Any) -> QConfig | None:
    if qconfig is None or isinstance(qconfig, QConfig):
        return qconfig
    raise _no_configuration(qconfig, "a rule holds a QConfig", "a QConfig of fxquant, or None to leave in float")


def _no_configuration(value: Any, what: str, expected: str, for_values: str = "") -> SpecError:
    """``for_values`` is the hint where ``value`` looks like inputs of a model."""
    kind = type(value)
    if kind.__module__.startswith("torch.ao."):
        got, hint = f"{kind.__module__}.{kind.__qualname__}", "the names of torch.ao's are the same in fxq"
    elif isinstance(value, Tensor | list | tuple | Mapping):
        got, hint = describe_value(value), for_values
    else:
        got, hint = repr(value), ""
    return SpecError(what, got=got, expected=expected, hint=hint)


def _checked_type(object_type: Any) -> ObjectType:
    if (callable(object_type) and not isinstance(object_type, nn.Module)) or isinstance(object_type, str):
        return object_type
    raise SpecError(
        "not a type of operator",
        got=repr(object_type),
        expected="a module class, a function, or the name of a method",
        hint="for one module of the model, use set_module_name with its path" if object_type is not None else "",
    )


def _checked_name(name: Any) -> str:
    if isinstance(name, str):
        return name
    raise SpecError("a module is named by its path", got=repr(name), expected="a string such as 'layer1.0.conv1'")


def _path_and_parents(path: str) -> Iterable[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


def _hint_for_type(key: ObjectType, types: Iterable[ObjectType]) -> str:
    """Return the nearest type; where a string was given, and that is a class or a function, said to be one."""
    known = {_name(found): found for found in sorted(types, key=lambda found: isinstance(found, str))}
    hint = did_you_mean(_name(key), known)
    if isinstance(key, str):
        for name, found in known.items():
            if not isinstance(found, str):
                hint = hint.replace(repr(name), f"the {'class' if isinstance(found, type) else 'function'} {name}")
    return hint


def _name(target: object) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", repr(target))
