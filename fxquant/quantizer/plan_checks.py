"""Refuses plans that hold no unit, leave out what was asked for, or hold weights that cannot be quantized."""

from __future__ import annotations

import math

from torch.fx import GraphModule

from fxquant.backends.base import SIGNED_WEIGHTS
from fxquant.errors import InputError, PlanError, listing
from fxquant.graph.inputs import is_given, spelled
from fxquant.graph.query import VALUE, TensorInfo, called_module, module_of, nodes_by_name
from fxquant.graph.recurrent import weight_of
from fxquant.measure.coverage import Coverage, coverage
from fxquant.nn.weight import all_finite, count_not_finite
from fxquant.passes.base import PassContext, weighted_nodes
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed, TensorRef


def check_layouts(gm: GraphModule, plan: QuantPlan) -> None:
    """Refuse sparse and MKLDNN inputs that are to become integers: no observer measures them. Others may be sparse.

    Raises:
        InputError: the message names the input.
    """
    for node in gm.graph.nodes:
        value = node.meta.get(VALUE)
        if (
            isinstance(value, TensorInfo)
            and not value.strided
            and is_given(node)
            and TensorRef(node.name) in plan.policies
        ):
            raise InputError(
                f"the example input {spelled(node)!r} is sparse, or of MKLDNN, where the model takes a dense tensor",
                got=f"{value} without strides",
                expected="a dense tensor, which becomes integers",
                hint=f"{spelled(node)}.to_dense()",
            )


def check_plan(gm: GraphModule, plan: QuantPlan, strict: bool, config: QConfigMapping) -> None:
    """Refuse a plan without units; and, if ``strict``, one that leaves in float what the configuration quantizes.

    Raises:
        PlanError: the message names each operator that stays float, with the reason.
    """
    found = coverage(gm, plan)
    if not plan.units:
        reasons = [f"{row.module or row.node}: {row.reason}" for row in found.float_rows[:10]]
        raise PlanError(
            "the model has no operator that can be quantized",
            got=listing(reasons) or "no operator on float tensors",
            hint=_weight_to_write(found, config)
            or ("what convert gave is int8 already, and needs nothing more" if _calls_kernels(gm) else "")
            or "look at the configuration and at the backend; register_pattern adds patterns",
        )
    left = [row for row in found.float_rows if not row.excused]
    if strict and left:
        lines = [f"{row.module or row.node} ({row.operator}): {row.reason}" for row in left]
        raise PlanError(
            f"strict: {len(left)} operators would stay float",
            got=listing(lines),
            expected="every operator that the configuration asks to quantize becomes int8",
            hint="set_module_name(name, None) says that one shall stay float; strict=False only reports them",
        )


def _calls_kernels(gm: GraphModule) -> bool:
    return any(getattr(node.target, "namespace", "") == "fxquant" for node in gm.graph.nodes)


def _weight_to_write(found: Coverage, config: QConfigMapping) -> str:
    """Write the observer of weights that a configuration should name where the back end refuses its own."""
    if not any(SIGNED_WEIGHTS in row.reason for row in found.float_rows):
        return ""
    for rule in config.rules():
        scheme = None if rule.qconfig is None else rule.qconfig.weight_scheme
        if rule.qconfig is not None and scheme is not None and not (scheme.signed and scheme.symmetric):
            kind = "per_tensor" if scheme.axis is None else "per_channel"
            words = f"dtype=torch.int8, qscheme=torch.{kind}_symmetric"
            return f"QConfig(weight={type(rule.qconfig.weight()).__name__}.with_args({words}), activation=…)"
    return ""


def check_group_sizes(gm: GraphModule, ctx: PassContext) -> None:
    """Refuse a group size that does not divide a weight, before anything is calibrated.

    Raises:
        PlanError: the message names each layer, and what divides it.
    """
    wrong, sizes, asked = [], [], 1
    for node, unit in weighted_nodes(gm, ctx):
        policy, shape = ctx.plan.policies[unit.roles["weight"]], tuple(weight_of(called_module(node)).shape)
        scheme = policy.observer().scheme if isinstance(policy, Observed) else None
        if scheme is None or scheme.group_size is None:
            continue
        dim = scheme.axis % len(shape) + 1
        sizes.append(shape[dim] if dim < len(shape) else 1)
        if sizes[-1] % scheme.group_size:
            asked = scheme.group_size
            divisors = ", ".join(map(str, _divisors(sizes[-1])))
            wrong.append(f"{node.target}: group_size={asked}, weight {list(shape)}; {sizes[-1]} divides by {divisors}")
    if wrong:
        fitting = min(_divisors(math.gcd(*sizes)), key=lambda number: abs(number - asked))
        raise PlanError(
            "group_size does not divide the weights of these layers",
            got=listing(wrong),
            expected="a group_size that divides the dimension behind the axis",
            hint=f"group_size={fitting} divides those of all layers",
        )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def check_weights(gm: GraphModule, plan: QuantPlan) -> None:
    """Find inf and NaN in the model before they are found in its values, where nobody can say where they came from."""
    nodes = nodes_by_name(gm)
    layers = {str(node.target): module for u in plan.units for n in u.nodes if (module := module_of(node := nodes[n]))}
    bad = [
        f"{path}.{name}: {count_not_finite(tensor)}"
        for path, module in layers.items()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if tensor.is_floating_point() and not all_finite(tensor)
    ]
    if bad:
        raise PlanError(
            "the model holds weights or statistics that are not finite",
            got=listing(bad),
            expected="finite numbers in every layer that is to be quantized",
            hint="a training that diverged leaves such weights; set_module_name(name, None) keeps a layer in float",
        )
