"""Says why an operator or a match of a pattern stays float."""

from __future__ import annotations

import operator
from dataclasses import is_dataclass
from functools import partial

import torch.nn.functional as F
from torch.fx import Node

from fxquant.backends.base import AsCalled, Backend, KeepAs, Lower, LoweringRule
from fxquant.graph.aliases import changed_argument
from fxquant.graph.containers import MADE_BY_NODES, default_dict
from fxquant.graph.macs import CONV_FUNCTIONS, TRANSPOSED_FUNCTIONS
from fxquant.graph.query import (
    BY_REQUEST,
    VALUE,
    called_module,
    is_number,
    is_one_tensor,
    is_tuple_of_tensors,
    nodes_in,
    reason_of,
    tensors_of,
)
from fxquant.graph.recurrent import weight_of
from fxquant.passes.qconfig_rules import Rules
from fxquant.patterns.floats import why_float
from fxquant.patterns.pattern import Match, Output
from fxquant.plan.qconfig import Rule
from fxquant.plan.quant_plan import Refusal
from fxquant.plan.spec import QScheme

FUNCTIONS_OF_WEIGHTS = (F.linear, *CONV_FUNCTIONS, *TRANSPOSED_FUNCTIONS, F.embedding, F.embedding_bag)

BY_NAME_ALONE = (
    "its input and its hidden states would share qparams, so only a rule that names it, or its type, quantizes it; "
    "default_dynamic_qconfig measures both at run time"
)
MEASURED_AT_RUN_TIME = (
    "its QConfig measures ranges at run time (is_dynamic=True), which linear and recurrent layers alone do"
)

FOR_EACH_TOKEN = (
    "its QConfig asks for a range for each token, which linear layers alone have; default_dynamic_qconfig measures the "
    "whole input"
)


def only_groups_values(node: Node) -> bool:
    """Tell whether a node only takes one of the results of another node, or puts values together."""
    if isinstance(node.target, type):
        return issubclass(node.target, MADE_BY_NODES) or is_dataclass(node.target)
    if node.target is default_dict:
        return True
    return node.target is operator.getitem and isinstance(node.args[0], Node) and not is_one_tensor(node.args[0])


def left_in_float(rule: Rule) -> str:
    """Say why an operator stays float for which a rule without QConfig decides."""
    if rule.kind == "global":
        return "the configuration has no global QConfig, and no rule for it"
    return f"the configuration leaves it in float: {rule}"


def refuse_unmatched(node: Node, rule: Rule) -> Refusal:
    """Say why an operator that no pattern matches stays float."""
    refusal = partial(Refusal, node.name, "")
    if rule.qconfig is None:
        return refusal(left_in_float(rule), excused=True)
    if node.target in FUNCTIONS_OF_WEIGHTS:
        return refusal("its weight is computed from the inputs; only one that stays the same is quantized")
    reason = reason_of(node) or why_float(node) or "no pattern knows this operator"
    changed = changed_argument(node)
    keeps_state = isinstance(changed, Node) and changed.op == "get_attr"
    return refusal(reason, excused=keeps_state or bool(node.meta.get(BY_REQUEST)))


def refuse_match(match: Match, backend: Backend, rules: Rules) -> Refusal | None:
    """Say why a match cannot become a unit; None if it can."""
    refusal = partial(Refusal, match.nodes[-1].name, match.pattern.name)
    for node in match.nodes:
        if reason := reason_of(node):
            return refusal(reason, excused=bool(node.meta.get(BY_REQUEST)))
    in_float = [rules[node] for node in match.nodes if rules[node].qconfig is None]
    if in_float:
        return refusal(left_in_float(in_float[-1]), excused=True)
    or_tuple = match.pattern.output is Output.PICKED
    for name in match.inputs:
        if reason := _not_quantizable(match.captures[name], or_tuple):
            return refusal(f"its operand {name!r} {reason}")
    if reason := _not_quantizable(match.nodes[-1], or_tuple, match.pattern.rounds_inside):
        return refusal(f"its output {reason}")
    if match.pattern.handler is not None:
        return None
    qconfig = rules[match.configured_node].qconfig
    assert qconfig is not None  # checked above
    uses_qparams = bool(match.inputs) or match.pattern.output is not Output.FLOAT
    uses_qparams = uses_qparams or (match.pattern.rounds_inside and not match.pattern.dynamic)
    if (uses_qparams and qconfig.activation_scheme is None) or (
        match.pattern.weight_capture and qconfig.weight_scheme is None
    ):
        return refusal("its QConfig observes without qparams (placeholder or no-op)", excused=True)
    if match.pattern.dynamic and qconfig.is_per_token and not match.pattern.per_token:
        return refusal(FOR_EACH_TOKEN)
    if uses_qparams and qconfig.is_dynamic:
        return refusal(MEASURED_AT_RUN_TIME, excused=not match.pattern.weight_capture)
    if match.pattern.check and (rejected := match.pattern.check(match.captures)):
        return refusal(rejected.reason)
    if match.pattern.rounds_inside and uses_qparams and rules[match.configured_node].kind == "global":
        return refusal(BY_NAME_ALONE)
    lowering = backend.rule_for(match.pattern)
    if lowering is None:
        return refusal(f"backend {backend.name!r} has no operator for it")
    if not isinstance(lowering.build, (Lower, KeepAs, AsCalled)) and (
        computed := _computed_argument(match, lowering.takes)
    ):
        return refusal(f"its argument {computed.name!r} is computed at run time")
    quantizes = uses_qparams or bool(match.pattern.dynamic)
    # The back end accepts a scheme (None), or says why it cannot store it.
    reason = lowering.where(match.captures)
    if reason is None and quantizes and qconfig.activation_scheme is not None:
        reason = lowering.activation(qconfig.activation_scheme)
    if reason is None and match.pattern.weight_capture and qconfig.weight_scheme is not None:
        reason = _why_not_weight(match, lowering, qconfig.weight_scheme)
    return None if reason is None else refusal(f"backend {backend.name!r}: {reason}")


def _why_not_weight(match: Match, rule: LoweringRule, scheme: QScheme) -> str | None:
    layer = called_module(match.configured_node)
    if scheme.axis is not None and scheme.axis % weight_of(layer).dim() not in (0, match.pattern.weight_axis):
        return f"its weight has a scale per index of dimension {scheme.axis}, which does not count the output channels"
    return rule.weight(scheme) or rule.layer(layer)


def _computed_argument(match: Match, taken: tuple[int, ...]) -> Node | None:
    """Return an argument beside the inputs that another node makes: a module is built once, with constants.

    Not counted are sizes in the positions ``taken`` of the root's arguments, with which the module is called.
    """
    inputs = [match.captures[name] for name in match.inputs]
    root = match.nodes[-1]
    sizes = [node for i in taken if i < len(root.args) for node in nodes_in(root.args[i]) if not is_one_tensor(node)]
    inputs += [node for node in sizes if not tensors_of(node)]
    arguments = [argument for node in match.nodes for argument in node.all_input_nodes]
    return next((node for node in arguments if node not in inputs and node not in match.nodes), None)


def _not_quantizable(value: object, or_tuple: bool, or_first: bool = False) -> str | None:
    """Return the reason why a value is no float tensor, nor a tuple of them where data movement may take one.

    With ``or_first`` a tuple is one where its first tensor is: a packed sequence also holds integers.
    """
    if is_number(value):
        return f"is the number {value}, not a tensor" if not isinstance(value, Node) else "is a number, not a tensor"
    if not isinstance(value, Node):
        return f"is {value!r}"
    if VALUE not in value.meta:
        return "is of a dtype that is not known"
    infos = tensors_of(value)[:1] if or_first else tensors_of(value)
    if or_first and infos:
        pass
    elif not infos or (not is_one_tensor(value) and not (or_tuple and is_tuple_of_tensors(value))):
        return "is no tensor"
    others = [info.dtype for info in infos if not info.dtype.is_floating_point]
    return f"is a tensor of {str(others[0]).removeprefix('torch.')}" if others else None
