"""The configuration of a prepared model as plain data, and back."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from fxquant.artifact.makers import Maker, Makers
from fxquant.artifact.node_facts import decode_class, encode_class
from fxquant.errors import ArtifactError
from fxquant.plan.qconfig import QConfig, QConfigMapping, Rule


def encode_configuration(config: QConfigMapping, makers: Makers, paths: Collection[str]) -> list[Any]:
    """Write the rules in their order.

    A regular expression is written as the paths that it matches: to match one may take any time, which a file of a
    stranger could choose.

    Args:
        config: Holds the rules.
        makers: They number the observers.
        paths: Of all modules and weights of the model.
    """
    return [[rule.kind, _encode_key(rule, paths), _encode_qconfig(rule.qconfig, makers)] for rule in config.rules()]


def _encode_key(rule: Rule, paths: Collection[str]) -> Any:
    if rule.kind == "object_type":
        return encode_class(rule.key)
    if rule.kind == "module_name_regex":
        return sorted(path for path in paths if re.match(rule.key, path))
    if rule.kind == "module_name_object_type_order":
        name, kind, index = rule.key
        return [name, encode_class(kind), index]
    return rule.key


def _encode_qconfig(qconfig: QConfig | None, makers: Makers) -> Any:
    if qconfig is None:
        return None
    output = None if qconfig.output is None else makers.number_of(qconfig.output)
    return [makers.number_of(qconfig.activation), makers.number_of(qconfig.weight), output, qconfig.correct_bias]


def decode_configuration(data: Any, makers: list[Maker]) -> QConfigMapping:
    """Read what ``encode_configuration`` wrote.

    Raises:
        ArtifactError: it is something else.
    """
    mapping = QConfigMapping()
    if not isinstance(data, list) or not all(isinstance(rule, list) and len(rule) == 3 for rule in data):
        raise ArtifactError("the file holds no configuration")
    # Each rule by its kind, whose key is checked before it is used.
    for kind, key, given in data:
        qconfig = _decode_qconfig(given, makers)
        if kind == "global" and key is None:
            mapping.set_global(qconfig)
        elif kind == "object_type":
            mapping.object_type_qconfigs[decode_class(key)] = qconfig
        elif kind == "module_name" and isinstance(key, str):
            mapping.set_module_name(key, qconfig)
        elif kind == "module_name_regex" and isinstance(key, list) and all(isinstance(path, str) for path in key):
            for path in key:
                mapping.set_module_name_regex(rf"{re.escape(path)}\Z", qconfig)
        elif kind == "module_name_object_type_order" and isinstance(key, list) and len(key) == 3:
            name, index = key[0], key[2]
            if not isinstance(name, str) or type(index) is not int or index < 0:
                raise ArtifactError("a rule of the configuration has no such key", got=ascii(key)[:120])
            mapping.module_name_object_type_order_qconfigs[name, decode_class(key[1]), index] = qconfig
        else:
            raise ArtifactError("a rule of the configuration is of no kind", got=ascii(kind)[:120])
    return mapping


def _decode_qconfig(data: Any, makers: list[Maker]) -> QConfig | None:
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != 4 or not isinstance(data[3], bool):
        raise ArtifactError("the file holds no QConfig here", got=ascii(data)[:120])
    activation, weight = (maker_at(makers, number) for number in data[:2])
    output = None if data[2] is None else maker_at(makers, data[2])
    return QConfig(activation=activation, weight=weight, output=output, correct_bias=data[3])


def maker_at(makers: list[Maker], number: Any) -> Maker:
    """Return the maker of that number.

    Raises:
        ArtifactError: there is none.
    """
    if type(number) is not int or not 0 <= number < len(makers):
        raise ArtifactError("the file names an observer that it does not hold", got=ascii(number)[:120])
    return makers[number]
