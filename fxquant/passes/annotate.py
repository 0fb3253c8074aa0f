"""Decides which nodes become units: patterns, configuration and backend, in that order."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch.fx import GraphModule, Node

from fxquant.backends.base import AsCalled, Backend, KeepAs, Lower, LoweringRule
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.aliases import changed_argument
from fxquant.graph.macs import CONV_FUNCTIONS, TRANSPOSED_FUNCTIONS
from fxquant.graph.query import (
    BY_REQUEST,
    called_module,
    is_number,
    is_tuple_of_tensors,
    nodes_in,
    reason_of,
    tensors_of,
    value_of,
)
from fxquant.nn.weight import each_channel_is_a_group
from fxquant.observers.fixed import FixedQParamsObserver
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.configure import Decision, decide
from fxquant.passes.prune_isolated_units import Boundaries
from fxquant.passes.tuple_outputs import APART, has_external_item
from fxquant.patterns.floats import why_float
from fxquant.patterns.matcher import PatternIndex, match
from fxquant.patterns.pattern import Bounded, Match, Mismatch, Output, Pattern
from fxquant.plan.qconfig import QConfig
from fxquant.plan.quant_plan import QuantUnit, Rejection
from fxquant.plan.spec import Dynamic, Fixed, Handled, Means, Observed, QParamsPolicy, QScheme, SharedWith, TensorRef

logger = logging.getLogger("fxquant")

FUNCTIONS_OF_WEIGHTS = (F.linear, *CONV_FUNCTIONS, *TRANSPOSED_FUNCTIONS, F.embedding, F.embedding_bag)

MEASURED_AT_RUN_TIME = "its QConfig measures ranges at run time (is_dynamic=True), which linear layers alone do"

CALLS = ("call_module", "call_function", "call_method")


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    excused: bool = False


@graph_pass(after=("normalize", "functional_to_module", "drop_idle"), keeps_values=True, required=True)
def annotate(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Match patterns, larger ones first, from the output backwards; say why what is left stays float."""
    decisions = decide(gm, ctx.config)
    index = PatternIndex(ctx.patterns)
    taken: set[Node] = set()
    matches: list[Match] = []
    rejections: list[Rejection] = []
    for node in reversed(gm.graph.nodes):
        if node.op not in CALLS or node in taken:
            continue
        found, rejection = _best_match(node, index.ending_in(node), taken, ctx.backend, decisions)
        if found is not None:
            taken.update(found.nodes)
            matches.append(found)
        elif rejection is not None:
            rejections.append(rejection)
    apart = has_external_item(matches)
    rejections += [Rejection(n.name, "", APART, excused=True) for n in apart if not _computes_nothing(n)]
    matches = [found for found in matches if found.nodes[-1] not in apart]
    boundaries = Boundaries(
        matches,
        ctx.backend,
        rounds_output=lambda found: _qconfig(found, decisions).output is not None,
        asked_for=lambda found: decisions[_primary(found)].rule.kind != "global",
    )
    in_float = boundaries.left_in_float()
    rejections += [Rejection(node.name, pattern, reason, excused=True) for node, (pattern, reason) in in_float.items()]
    units: list[QuantUnit] = []
    policies: dict[TensorRef, QParamsPolicy] = {}
    readers: dict[Node, list[Callable[[], Any]]] = {}
    for found in map(boundaries.with_inputs_as_read, matches):
        if found.nodes[-1] not in in_float:
            unit, built = _unit_of(found, decisions, boundaries.is_float_output(found))
            units.append(unit)
            policies.update(built)
            for name in found.inputs:
                readers.setdefault(found.captures[name], []).append(_qconfig(found, decisions).activation)
    for node, wanted in readers.items():
        policies.setdefault(TensorRef(node.name), _observed(_input_observer(node, wanted, decisions, ctx)))
    ctx.plan = replace(
        ctx.plan, units=tuple(reversed(units)), policies=policies, rejections=tuple(reversed(rejections))
    )
    return gm


def _best_match(
    node: Node, patterns: tuple[Pattern, ...], taken: set[Node], backend: Backend, decisions: Mapping[Node, Decision]
) -> tuple[Match | None, Rejection | None]:
    near: Mismatch | None = None
    refusal: tuple[str, _Refusal] | None = None
    for pattern in patterns:
        found = match(pattern, node)
        if isinstance(found, Mismatch):
            near = found if near is None or found.matched > near.matched else near
            continue
        if not taken.isdisjoint(found.nodes) or not _is_meant(found, decisions):
            continue
        refused = _refuse(found, backend, decisions)
        if refused is None:
            logger.debug("%s: %s", node.name, pattern.name)
            return found, None
        logger.debug("%s: %s refused: %s", node.name, pattern.name, refused.reason)
        refusal = (pattern.name, refused)
    if near is not None:
        text = "%s: %d patterns tried; nearest miss %s, stopped at %s: %s"
        logger.debug(text, node.name, len(patterns), near.pattern, near.node.name, near.reason)
    elif not patterns:
        logger.debug("%s: no pattern ends in this operator", node.name)
    if not any(info.dtype.is_floating_point for info in tensors_of(node)) or _computes_nothing(node):
        return None, None  # sizes, masks: nothing that could be quantized
    if refusal is None:
        refusal = ("", _unknown(node, decisions[node]))
    return None, Rejection(node.name, refusal[0], refusal[1].reason, refusal[1].excused)


def _computes_nothing(node: Node) -> bool:
    """Tell whether a node only takes one of the results of another node, or puts values together."""
    if isinstance(node.target, type):
        return issubclass(node.target, (tuple, dict)) or is_dataclass(node.target)
    return node.target is operator.getitem and isinstance(node.args[0], Node) and value_of(node.args[0]) is None


def _unknown(node: Node, decision: Decision) -> _Refusal:
    if decision.qconfig is None:
        return _Refusal(decision.in_float, excused=True)
    if node.target in FUNCTIONS_OF_WEIGHTS:
        return _Refusal("its weight is computed from the inputs; only one that stays the same is quantized")
    reason = reason_of(node) or why_float(node) or "no pattern knows this operator"
    changed = changed_argument(node)
    keeps_state = isinstance(changed, Node) and changed.op == "get_attr"
    return _Refusal(reason, excused=keeps_state or bool(node.meta.get(BY_REQUEST)))


def _refuse(found: Match, backend: Backend, decisions: Mapping[Node, Decision]) -> _Refusal | None:
    """Why a match cannot become a unit, or None."""
    for node in found.nodes:
        if reason := reason_of(node):
            return _Refusal(reason, excused=bool(node.meta.get(BY_REQUEST)))
    in_float = [decisions[node] for node in found.nodes if decisions[node].qconfig is None]
    if in_float:
        return _Refusal(in_float[-1].in_float, excused=True)
    moves = found.pattern.output is Output.PICKED
    for name in found.inputs:
        if reason := _not_quantizable(found.captures[name], moves):
            return _Refusal(f"its operand {name!r} {reason}")
    if reason := _not_quantizable(found.nodes[-1], moves):
        return _Refusal(f"its output {reason}")
    if found.pattern.handler is not None:
        return None
    qconfig = decisions[_primary(found)].qconfig
    assert qconfig is not None  # checked above
    on_qparams = bool(found.inputs) or found.pattern.output is not Output.FLOAT
    if (on_qparams and qconfig.activation_scheme is None) or (found.pattern.weight and qconfig.weight_scheme is None):
        return _Refusal("its QConfig observes without a grid (placeholder or no-op)", excused=True)
    if on_qparams and qconfig.is_dynamic:
        return _Refusal(MEASURED_AT_RUN_TIME, excused=not found.pattern.weight)
    if found.pattern.check and (reject := found.pattern.check(found.captures)):
        return _Refusal(reject.reason)
    rule = backend.rule_for(found.pattern)
    if rule is None:
        return _Refusal(f"backend {backend.name!r} has no operator for it")
    if not isinstance(rule.build, (Lower, KeepAs, AsCalled)) and (computed := _computed_argument(found, rule.takes)):
        return _Refusal(f"its argument {computed.name!r} is computed at run time")
    quantizes = on_qparams or bool(found.pattern.dynamic)
    reason = rule.activation(qconfig.activation_scheme) if quantizes and qconfig.activation_scheme else None
    if reason is None and found.pattern.weight and qconfig.weight_scheme is not None:
        reason = _why_not_weight(found, rule, qconfig.weight_scheme)
    return None if reason is None else _Refusal(f"backend {backend.name!r}: {reason}")


def _why_not_weight(found: Match, rule: LoweringRule, scheme: QScheme) -> str | None:
    layer = called_module(_primary(found))
    if scheme.axis is not None and scheme.axis % layer.weight.dim() not in (0, found.pattern.weight_axis):
        return f"its weight has a scale per index of dimension {scheme.axis}, which does not count the output channels"
    return rule.weight(scheme) or rule.layer(layer)


def _computed_argument(found: Match, taken: tuple[int, ...]) -> Node | None:
    """An argument beside the inputs that another node makes: a module is built once, with constants.

    Not counted are sizes in the positions ``taken`` of the root's arguments, with which the module is called.
    """
    inputs = [found.captures[name] for name in found.inputs]
    root = found.nodes[-1]
    sizes = [node for i in taken if i < len(root.args) for node in nodes_in(root.args[i]) if value_of(node) is None]
    inputs += [node for node in sizes if not tensors_of(node)]
    arguments = [argument for node in found.nodes for argument in node.all_input_nodes]
    return next((node for node in arguments if node not in inputs and node not in found.nodes), None)


def _not_quantizable(value: object, or_tuple: bool) -> str | None:
    """Return the reason why a value is no float tensor, nor a tuple of them where data movement may take one."""
    if is_number(value):
        return f"is the number {value}, not a tensor" if not isinstance(value, Node) else "is a number, not a tensor"
    if not isinstance(value, Node):
        return f"is {value!r}"
    infos = tensors_of(value)
    if not infos or (value_of(value) is None and not (or_tuple and is_tuple_of_tensors(value))):
        return "is no tensor"
    others = [info.dtype for info in infos if not info.dtype.is_floating_point]
    return f"is a tensor of {str(others[0]).removeprefix('torch.')}" if others else None


def _is_meant(found: Match, decisions: Mapping[Node, Decision]) -> bool:
    """Whether a pattern is for this kind of QConfig: one that measures in each call, or leaves activations in float."""
    pattern, qconfig = found.pattern, decisions[_primary(found)].qconfig
    if qconfig is None:
        return True
    return (not pattern.dynamic or qconfig.is_dynamic) and (
        not pattern.weight_only or qconfig.activation_scheme is None
    )


def _primary(found: Match) -> Node:
    """The node whose QConfig is the unit's: the one that holds the weight, else the innermost operator."""
    return found.captures[found.pattern.weight] if found.pattern.weight else found.nodes[0]


def _unit_of(
    found: Match, decisions: Mapping[Node, Decision], is_float_output: bool
) -> tuple[QuantUnit, dict[TensorRef, QParamsPolicy]]:
    pattern, root = found.pattern, found.nodes[-1]
    qconfig = _qconfig(found, decisions)
    roles = {name: TensorRef(found.captures[name].name) for name in found.inputs}
    policies: dict[TensorRef, QParamsPolicy] = {}
    for name in pattern.dynamic:
        roles[name] = TensorRef(f"{found.captures[name].name}@{root.name}", "call")
        policies[roles[name]] = _per_call(qconfig)
    if not is_float_output:
        roles["y"] = TensorRef(root.name)
    if "y" not in roles:
        pass
    elif pattern.handler is not None:
        policies[roles["y"]] = Handled()
    elif isinstance(pattern.output, Fixed):
        policies[roles["y"]] = pattern.output
    elif isinstance(pattern.output, Bounded) and not _is_fixed(qconfig.activation()):
        assert qconfig.activation_scheme is not None  # _refuse saw to it
        policies[roles["y"]] = Fixed(pattern.output.qparams(qconfig.activation_scheme))
    elif pattern.output in (Output.PICKED, Output.CLAMPED):
        factor = 1.0 if pattern.factor is None else pattern.factor(found.captures)
        policies[roles["y"]] = SharedWith(roles[found.inputs[0]], factor=factor)
    else:
        policies[roles["y"]] = _observed((_is_returned(root) and qconfig.output) or qconfig.activation)
    if pattern.weight:
        # A module called at two places is two units: each may fold a batch norm of its own into the weight.
        module = found.captures[pattern.weight].target
        roles["weight"] = TensorRef(f"{module}.weight@{root.name}", "parameter")
        policies[roles["weight"]] = Observed(_weight_observer(found, qconfig))
        if qconfig.correct_bias and pattern.handler is None and (means := _means_of_input(found)):
            roles["mean"] = TensorRef(f"{means.value}@{means.axis}", "mean")
            policies[roles["mean"]] = means
    captures = {name: value.name for name, value in found.captures.items() if isinstance(value, Node)}
    names = tuple(node.name for node in found.nodes)
    return QuantUnit(pattern.name, names, captures, found.inputs, roles), policies


def _means_of_input(found: Match) -> Means | None:
    """By what the bias of a match is corrected; None where inputs are floats, or a bias cannot be."""
    node = _primary(found)
    layer = called_module(node)
    value = node.args[0]
    if not any(found.captures[name] is value for name in found.inputs) or "bias" not in layer._parameters:
        return None
    assert isinstance(value, Node)
    return Means(value.name, 1 - layer.weight.dim())  # [..., C] for a linear layer, [..., C, *spatial] for others


def _qconfig(found: Match, decisions: Mapping[Node, Decision]) -> QConfig:
    qconfig = decisions[_primary(found)].qconfig
    assert qconfig is not None  # _refuse saw to it
    return qconfig


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _observed(observer: Callable[[], Any]) -> QParamsPolicy:
    """The policy that an observer of a configuration stands for."""
    built = observer()
    return Fixed(built.qparams()) if _is_fixed(built) else Observed(observer)


def _is_fixed(built: Any) -> bool:
    return isinstance(observer_in(built), FixedQParamsObserver)


def _per_call(qconfig: QConfig) -> Dynamic:
    assert qconfig.activation_scheme is not None  # so is every QConfig that is dynamic
    return Dynamic(qconfig.activation_scheme, float(observer_in(qconfig.activation()).eps))


def _input_observer(
    node: Node, wanted: list[Callable[[], Any]], decisions: Mapping[Node, Decision], ctx: PassContext
) -> Callable[[], Any]:
    """Return the observer of a value that no unit computes: its readers' if they agree, else that of its own rule."""
    if ctx.input_observer is not None:
        return ctx.input_observer
    if all(observer == wanted[0] for observer in wanted):
        return wanted[0]
    own = decisions[node].qconfig if node in decisions else ctx.config.global_qconfig
    return wanted[-1] if own is None or own.activation_scheme is None else own.activation


def _weight_observer(found: Match, qconfig: QConfig) -> Callable[[], Any]:
    """What measures the weight of a match. Axis 0 of a configuration stands for the output channels, wherever they are.

    Dimension 1 of a transposed weight counts those of each group; where each channel is a group, 0 is right after all.
    """
    observer: Any = qconfig.weight
    scheme, axis = qconfig.weight_scheme, found.pattern.weight_axis
    if scheme is None or scheme.axis != 0 or axis == 0 or each_channel_is_a_group(called_module(_primary(found))):
        return observer
    if getattr(observer, "arguments", {}).get("scheme") is not None:
        return observer.with_args(scheme=replace(scheme, axis=axis))
    return observer.with_args(ch_axis=axis)
