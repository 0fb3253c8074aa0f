"""Finds the rule of the user's QConfigMapping for each node of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from fxquant.graph.operators.spelling import canonical_target, spellings, spellings_of
from fxquant.graph.query import DECOMPOSED_FROM, ORIGINAL_FUNCTION, WEIGHT, NamedClass, module_of, module_path
from fxquant.passes.base import PassContext
from fxquant.passes.boundary_names import given_as_integers
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.pattern import Match
from fxquant.plan.qconfig import ObjectType, QConfig, QConfigMapping, Rule, UnusedRule

CALLS = ("call_module", "call_function", "call_method")

_DEFAULT = {id(pattern) for pattern in DEFAULT_PATTERNS}
"""The patterns of the package, to be told by what they are: comparing each with all, field by field, takes 5 ms."""


class Names(NamedTuple):
    """The names by which a rule may refer to a call, in the order in which ``QConfigMapping.resolve`` takes them."""

    path: str
    """Path of the module that is called, or, for a function, of the module whose code calls it."""
    object_types: tuple[ObjectType, ...]
    """Types of the operator, the most exact first, then those of the modules that hold it."""
    occurrences: tuple[tuple[str, ObjectType, int], ...]
    """For each type: path of the module whose code calls it, the type, and how many calls of that type came before."""
    weight_path: str
    """Path of the parameter that a function takes as its weight; empty for all else."""


Rules = Mapping[Node, Rule]
"""Call of a graph -> the rule that decides for it."""


def rules_of_calls(gm: GraphModule, config: QConfigMapping) -> Rules:
    """Return the rule that decides for each call of the graph."""
    return {node: _rule_of_call(node, names, config) for node, names in names_of_calls(gm).items()}


def _rule_of_call(node: Node, names: Names, config: QConfigMapping) -> Rule:
    if DECOMPOSED_FROM not in node.meta:
        return config.resolve(*names)
    path, rule = node.meta[DECOMPOSED_FROM]
    return rule_of_part(config, names, path, rule)


def rule_of_part(config: QConfigMapping, names: Names, whole: str, rule: Rule) -> Rule:
    """Return the rule that decides for a part of an operator that was taken apart.

    ``rule``, which decided for the operator at the path ``whole``, holds for its parts as well, unless it is the global
    one, or a rule names something inside.
    """
    own = config.resolve(*names)
    inside = own.kind == "module_name" and str(own.key).startswith(f"{whole}.")
    return own if inside or rule.kind == "global" else rule


def quantizes_part(target: Any, path: str, whole: tuple[str, Rule], ctx: PassContext) -> bool:
    """Tell whether a part of an operator would be quantized: patterns, back end and configuration permitting."""
    known = any(
        canonical_target(target) in pattern.root.all_targets
        and (pattern.handler is not None or ctx.backend.rule_for(pattern) is not None)
        for pattern in ctx.patterns
    )
    return known and rule_of_part(ctx.config, Names(path, spellings_of(target), (), ""), *whole).qconfig is not None


def own_targets(ctx: PassContext) -> set[Any]:
    """Return what patterns of the user's own name: that stays what it is, so that they find it."""
    other = (pattern for pattern in ctx.patterns if id(pattern) not in _DEFAULT)
    own = (pattern for pattern in other if pattern not in DEFAULT_PATTERNS)  # an equal one: a quantizer was unpickled
    return {target for pattern in own for target in pattern.root.all_targets}


def unused_rules(gm: GraphModule, config: QConfigMapping) -> tuple[UnusedRule, ...]:
    """Return the rules that match nothing in the model, each with the nearest thing that exists."""
    calls = names_of_calls(gm).values()
    modules = dict(gm.named_modules())
    types = {object_type for names in calls for object_type in names.object_types}
    return config.unused_rules(
        {*modules, *(names.weight_path for names in calls)},
        types | {type(module) for module in modules.values()},
        [occurrence for names in calls for occurrence in names.occurrences],
    )


def names_of_calls(gm: GraphModule) -> dict[Node, Names]:
    """Return the names by which a rule may refer to each call."""
    seen: Counter[tuple[str, ObjectType]] = Counter()
    named: dict[Node, Names] = {}
    for node in gm.graph.nodes:
        if node.op not in CALLS:
            continue
        path, own_type = module_path(node)
        types = _types_of(node, own_type)
        caller = path.rpartition(".")[0] if own_type is not None else path
        occurrences = tuple((caller, object_type, seen[caller, object_type]) for object_type in types)
        named[node] = Names(path, (*types, *_types_around(node)), occurrences, str(node.meta.get(WEIGHT, "")))
        seen.update((caller, object_type) for object_type in types)
    return named


def _types_of(node: Node, own_type: type | None) -> tuple[ObjectType, ...]:
    """Return all names of an operator, the most exact first: the user's class, its torch class, every spelling."""
    module = None if ORIGINAL_FUNCTION in node.meta else module_of(node)
    classes = (own_type,) if own_type is not None else (type(module),) if module is not None else ()
    known = spellings(node)
    names = (getattr(target, "__name__", "") for target in known if not isinstance(target, (str, type)))
    return tuple(dict.fromkeys((*classes, *known, *filter(None, names))))


def _types_around(node: Node) -> tuple[ObjectType, ...]:
    """Types of the modules that hold the operator, the innermost first: a rule for a block is one for all in it."""
    stack = node.meta.get("nn_module_stack") or {}
    kinds: list[Any] = [kind for _, kind in reversed(stack.values()) if isinstance(kind, (type, NamedClass))]
    return tuple(dict.fromkeys(kinds))


def qconfig_of(match: Match, rules: Rules) -> QConfig:
    """Return the QConfig of a match that was not refused."""
    qconfig = rules[match.configured_node].qconfig
    assert qconfig is not None  # refuse_match saw to it
    return qconfig


def rounds_model_output(gm: GraphModule, ctx: PassContext, rules: Rules) -> Callable[[Match], bool]:
    """Return what tells whether a match is rounded where the model returns it: observed, or given as integers."""
    as_integers = given_as_integers(gm, ctx.integer_outputs)
    return lambda match: match.nodes[-1].name in as_integers or qconfig_of(match, rules).output is not None
