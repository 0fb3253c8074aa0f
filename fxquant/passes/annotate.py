"""Decides which nodes become units: patterns, configuration and back end, in that order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.backends.base import Backend
from fxquant.graph.query import is_one_tensor, is_shape_query, tensors_of
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.qconfig_rules import Rules, qconfig_of, rounds_model_output, rules_of_calls
from fxquant.passes.refusals import only_groups_values, refuse_match, refuse_unmatched
from fxquant.passes.unit_building import input_observer, observed_policy, unit_of
from fxquant.passes.unit_choice import UnitChoice
from fxquant.patterns import matcher
from fxquant.patterns.matcher import PatternIndex
from fxquant.patterns.pattern import Match, Mismatch, Pattern
from fxquant.plan.quant_plan import QuantUnit, Refusal
from fxquant.plan.spec import QParamsPolicy, TensorRef

logger = logging.getLogger("fxquant")

HAS_FLOAT_READER = "a float operator reads or makes an item of its tuple"

CALLS = ("call_module", "call_function", "call_method")


@graph_pass(
    after=("normalize", "functional_to_module", "decompose_attention", "drop_idle"), keeps_values=True, required=True
)
def annotate(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Match patterns, larger ones first, from the output backwards; say why what is left stays float."""
    # Find the rule of the configuration for each call, and the patterns that may end in each node.
    rules = rules_of_calls(gm, ctx.config)
    index = PatternIndex(ctx.patterns)
    taken: set[Node] = set()
    matches: list[Match] = []
    refusals: list[Refusal] = []

    # Match: each node belongs to one match at most.
    for node in reversed(gm.graph.nodes):
        if node.op not in CALLS or node in taken:
            continue
        match, refusal = _best_match(node, index.ending_in(node), taken, ctx.backend, rules)
        if match is not None:
            taken.update(match.nodes)
            matches.append(match)
        elif refusal is not None:
            refusals.append(refusal)

    # Leave in float the matches that give a tuple of which a float operator reads an item. An input or a result that is
    # not one tensor is a tuple: refuse_match lets nothing else pass.
    with_external_item = _nodes_with_external_item(matches) if any(map(_gives_or_takes_tuple, matches)) else set()
    refusals += [
        Refusal(n.name, "", HAS_FLOAT_READER, excused=True) for n in with_external_item if not only_groups_values(n)
    ]
    matches = [match for match in matches if match.nodes[-1] not in with_external_item]

    # Leave in float what gains nothing by int8. What multiplies by a weight gains, unless it stands alone between
    # floats and multiplies too little to pay for rounding its input. What a rule of its own asks for is not left.
    choice = UnitChoice(
        matches,
        ctx.backend,
        rounds_model_output=rounds_model_output(gm, ctx, rules),
        asked_for=lambda match: rules[match.configured_node].kind != "global",
    )
    in_float = choice.left_in_float()
    refusals += [Refusal(node.name, pattern, reason, excused=True) for node, (pattern, reason) in in_float.items()]

    # Build a unit of each other match, and the policies of the tensors that it makes.
    units: list[QuantUnit] = []
    policies: dict[TensorRef, QParamsPolicy] = {}
    readers: dict[Node, list[Callable[[], Any]]] = {}
    # A bounded function (sigmoid, softmax) whose input stays float reads the float: its unit has no quantized inputs.
    for match in map(choice.without_float_inputs, matches):
        if match.nodes[-1] not in in_float:
            unit, built = unit_of(match, rules, choice.gives_float_result(match))
            units.append(unit)
            policies.update(built)
            for name in match.inputs:
                readers.setdefault(match.captures[name], []).append(qconfig_of(match, rules).activation)

    # Observe each value that no unit makes, as the units that read it ask for.
    for node, wanted in readers.items():
        policies.setdefault(TensorRef(node.name), observed_policy(input_observer(node, wanted, rules, ctx)))
    ctx.plan = replace(ctx.plan, units=tuple(reversed(units)), policies=policies, refusals=tuple(reversed(refusals)))
    return gm


def _gives_or_takes_tuple(match: Match) -> bool:
    """Tell whether a match gives or takes a tuple of tensors, as ``split`` gives it."""
    gives_tuple = not is_one_tensor(match.nodes[-1]) and match.pattern.can_give_integers
    return gives_tuple or any(not is_one_tensor(match.captures[name]) for name in match.inputs)


def _nodes_with_external_item(matches: Sequence[Match]) -> set[Node]:
    """Return the roots of matches that cannot be units: their tuple has an item that a float operator reads or makes.

    A tuple of quantized tensors cannot be dequantized as one, so all that makes and reads its items becomes units, or
    nothing does. A question for its length reads no item.
    """
    units = {match.nodes[-1]: match for match in matches if match.pattern.can_give_integers}
    dropped: set[Node] = set()
    while gone := {root for root, match in units.items() if _has_external_item(match, units.keys())}:
        dropped |= gone
        units = {root: match for root, match in units.items() if root not in gone}
    return dropped


def _has_external_item(match: Match, roots: Collection[Node]) -> bool:
    root = match.nodes[-1]
    sources = [match.captures[name] for name in match.inputs]
    if any(not is_one_tensor(source) and source not in roots for source in sources):
        return True
    return not is_one_tensor(root) and any(user not in roots and not is_shape_query(user) for user in root.users)


def _best_match(
    node: Node, patterns: tuple[Pattern, ...], taken: set[Node], backend: Backend, rules: Rules
) -> tuple[Match | None, Refusal | None]:
    """Return the match of the first pattern that fits and is not refused, or the refusal that the node gets."""
    near: Mismatch | None = None
    refusal: Refusal | None = None
    for pattern in patterns:
        match = matcher.match(pattern, node)
        if isinstance(match, Mismatch):
            near = match if near is None or match.matched > near.matched else near
            continue
        if not taken.isdisjoint(match.nodes) or not _suits_qconfig(match, rules):
            continue
        refusal = refuse_match(match, backend, rules)
        if refusal is None:
            logger.debug("%s: %s", node.name, pattern.name)
            return match, None
        logger.debug("%s: %s refused: %s", node.name, pattern.name, refusal.reason)
    if near is not None:
        text = "%s: %d patterns tried; nearest miss %s, stopped at %s: %s"
        logger.debug(text, node.name, len(patterns), near.pattern, near.node.name, near.reason)
    elif not patterns:
        logger.debug("%s: no pattern ends in this operator", node.name)
    if not any(info.dtype.is_floating_point for info in tensors_of(node)) or only_groups_values(node):
        return None, None  # sizes, masks: nothing that could be quantized
    return None, refusal or refuse_unmatched(node, rules[node])


def _suits_qconfig(match: Match, rules: Rules) -> bool:
    """Tell whether the QConfig fits: dynamic patterns need ``is_dynamic``, weight-only ones float activations.

    Those with a range for each token need a QConfig that says so.
    """
    pattern, qconfig = match.pattern, rules[match.configured_node].qconfig
    if qconfig is None:
        return True
    if pattern.rounds_inside and not pattern.dynamic and qconfig.is_dynamic:
        return False  # a recurrent layer with a static range
    if pattern.per_token and not qconfig.is_per_token:
        return False
    return (not pattern.dynamic or qconfig.is_dynamic) and (
        not pattern.weight_only or qconfig.activation_scheme is None
    )
