"""Builds the unit of a match: its operands, and a policy for the qparams of each tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.fx import Node

from fxquant.fake_quantize.base import observer_in
from fxquant.graph.query import called_module
from fxquant.nn.weight import each_channel_is_a_group
from fxquant.observers.fixed import FixedQParamsObserver
from fxquant.passes.base import PassContext
from fxquant.passes.qconfig_rules import Rules, qconfig_of
from fxquant.patterns.pattern import Bounded, Match, Output
from fxquant.plan.qconfig import QConfig
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import Dynamic, Fixed, Handled, Means, Observed, QParamsPolicy, SharedWith, TensorRef


def unit_of(match: Match, rules: Rules, gives_float_result: bool) -> tuple[QuantUnit, dict[TensorRef, QParamsPolicy]]:
    """Build the unit of a match, and the policies of what is measured for it: its weight, its ``y``, its ``mean``.

    ``gives_float_result`` tells that the unit gives float values: its result has no qparams.
    """
    pattern, root = match.pattern, match.nodes[-1]
    qconfig = qconfig_of(match, rules)
    # Inputs. The unit that makes a value sets its policy; annotate sets that of values that no unit makes.
    roles = {name: TensorRef(match.captures[name].name) for name in match.inputs}
    policies: dict[TensorRef, QParamsPolicy] = {}
    for name in pattern.dynamic:
        roles[name] = TensorRef(f"{match.captures[name].name}@{root.name}", "call")
        policies[roles[name]] = _dynamic_policy(qconfig)
    if pattern.rounds_inside and not pattern.dynamic:
        roles["x"] = TensorRef(root.name)
        policies[roles["x"]] = observed_policy(qconfig.activation)
    # The output: its range is measured, known beforehand, or that of the input.
    if not gives_float_result:
        roles["y"] = TensorRef(root.name)
    if "y" not in roles:
        pass
    elif pattern.handler is not None:
        policies[roles["y"]] = Handled()
    elif isinstance(pattern.output, Fixed):
        policies[roles["y"]] = pattern.output
    elif isinstance(pattern.output, Bounded) and not _is_fixed(qconfig.activation()):
        assert qconfig.activation_scheme is not None  # refuse_match saw to it
        policies[roles["y"]] = Fixed(pattern.output.qparams(qconfig.activation_scheme))
    elif pattern.output in (Output.PICKED, Output.CLAMPED):
        factor = 1.0 if pattern.factor is None else pattern.factor(match.captures)
        policies[roles["y"]] = SharedWith(roles[match.inputs[0]], factor=factor)
    else:
        policies[roles["y"]] = observed_policy((_is_returned(root) and qconfig.output) or qconfig.activation)
    # The weight, and the means of the input's channels, with which the bias is corrected.
    if pattern.weight_capture:
        # A module called at two places is two units: each may fold a batch norm of its own into the weight.
        module = match.captures[pattern.weight_capture].target
        roles["weight"] = TensorRef(f"{module}.weight@{root.name}", "parameter")
        policies[roles["weight"]] = Observed(_weight_observer(match, qconfig))
        if qconfig.correct_bias and pattern.handler is None and (means := _means_of_input(match)):
            roles["mean"] = TensorRef(f"{means.value}@{means.axis}", "mean")
            policies[roles["mean"]] = means
    captures = {name: value.name for name, value in match.captures.items() if isinstance(value, Node)}
    names = tuple(node.name for node in match.nodes)
    return QuantUnit(pattern.name, names, captures, match.inputs, roles), policies


def _means_of_input(match: Match) -> Means | None:
    """Return the policy that measures the means of the input's channels.

    None if the input stays float, or the layer's class has no bias.
    """
    node = match.configured_node
    layer = called_module(node)
    value = node.args[0]
    if not any(match.captures[name] is value for name in match.inputs) or "bias" not in layer._parameters:
        return None
    assert isinstance(value, Node)
    return Means(value.name, 1 - layer.weight.dim())  # [..., C] for a linear layer, [..., C, *spatial] for others


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def observed_policy(observer: Callable[[], Any]) -> QParamsPolicy:
    """Return the policy that an observer of a configuration stands for."""
    built = observer()
    return Fixed(built.qparams()) if _is_fixed(built) else Observed(observer)


def _is_fixed(built: Any) -> bool:
    """Tell whether an observer, maybe inside a fake-quantize module, measures nothing: its qparams are given."""
    return isinstance(observer_in(built), FixedQParamsObserver)


def _dynamic_policy(qconfig: QConfig) -> Dynamic:
    assert qconfig.activation_scheme is not None  # so is every QConfig that is dynamic
    eps = float(observer_in(qconfig.activation()).eps)
    return Dynamic(qconfig.activation_scheme, eps, "token" if qconfig.is_per_token else "tensor")


def input_observer(node: Node, wanted: list[Callable[[], Any]], rules: Rules, ctx: PassContext) -> Callable[[], Any]:
    """Return the observer of a value that no unit computes: its readers' if they agree, else that of its own rule."""
    if ctx.input_observer is not None:
        return ctx.input_observer
    if all(observer == wanted[0] for observer in wanted):
        return wanted[0]
    own = rules[node].qconfig if node in rules else ctx.config.global_qconfig
    return wanted[-1] if own is None or own.activation_scheme is None else own.activation


def _weight_observer(match: Match, qconfig: QConfig) -> Callable[[], Any]:
    """Return the observer of a match's weight. Axis 0 of a configuration stands for output channels, wherever they are.

    Dimension 1 of a transposed weight counts those of each group; where each channel is a group, 0 is right after all.
    """
    observer: Any = qconfig.weight
    scheme, axis = qconfig.weight_scheme, match.pattern.weight_axis
    if scheme is None or scheme.axis != 0 or axis == 0 or each_channel_is_a_group(called_module(match.configured_node)):
        return observer
    if getattr(observer, "arguments", {}).get("scheme") is not None:
        return observer.with_args(scheme=replace(scheme, axis=axis))
    return observer.with_args(ch_axis=axis)
