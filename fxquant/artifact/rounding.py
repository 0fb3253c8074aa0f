"""Weights whose integers were learned, or come from a module that rounds in its own way: as these integers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.artifact.values import decode, encode
from fxquant.errors import ArtifactError
from fxquant.fake_quantize.adaround import LEARNED_BIAS, KnownIntegers, learned_bias, set_learned_bias
from fxquant.graph.query import called_module, nodes_by_name
from fxquant.graph.recurrent import weight_of
from fxquant.passes.base import weighted_nodes
from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.manager import PassManager
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, QScheme
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context

PREFIX = "#rounding/"
"""What the names of their tensors begin with."""
_PARTS = ("integers_of_weight", "scale", "zero_point")


def encode_rounding(prepared: PreparedModel) -> tuple[list[Any], dict[str, Tensor]]:
    """Write the integers that ``convert`` would take from ``weight_layers``.

    Returns:
        The root of each unit with its scheme, and tensors by name.
    """
    data: list[Any] = []
    tensors: dict[str, Tensor] = {}
    if not len(prepared.weight_layers):
        return data, tensors
    context = pass_context(prepared, prepared.plan)
    folded = PassManager((fold_conv_bn,)).run(copy.deepcopy(prepared.graph_module), context)
    for node, unit in weighted_nodes(folded, context):
        if unit.root in context.weight_layers:
            rounding: Any = context.weight_layers[unit.root].weight_fake_quant
            known = KnownIntegers(rounding.integers(weight_of(called_module(node)).detach()), rounding.qparams())
            tensors |= {f"{PREFIX}{len(data)}.{part}": getattr(known, part).detach() for part in _PARTS}
            bias = learned_bias(context.weight_layers[unit.root])
            if bias is not None:
                tensors[f"{PREFIX}{len(data)}.{LEARNED_BIAS}"] = bias
            data.append([unit.root, encode(known.scheme)])
    return data, tensors


def decode_rounding(
    data: Any, tensors: Mapping[str, Tensor], gm: GraphModule, plan: QuantPlan, weights: Mapping[str, str]
) -> dict[str, nn.Module]:
    """Make ``weight_layers`` of what ``encode_rounding`` wrote.

    Args:
        data: The root of each unit with its scheme.
        tensors: Of the file.
        gm: The float graph.
        plan: Its plan.
        weights: Root of a unit -> name of the node that calls the layer with its weight.

    Raises:
        ArtifactError: a unit is none, has no weight, or has one of another shape.
    """
    layers: dict[str, nn.Module] = {}
    nodes = nodes_by_name(gm)
    if not isinstance(data, list) or len(data) > len(plan.units):
        raise ArtifactError("the file holds no list of learned weights")
    for index, item in enumerate(data):
        root, scheme = item if isinstance(item, list) and len(item) == 2 else (None, None)
        scheme = decode(scheme)
        parts = [tensors.get(f"{PREFIX}{index}.{part}") for part in _PARTS]
        if not isinstance(root, str) or root not in weights or not isinstance(scheme, QScheme):
            raise ArtifactError("the file holds a learned weight of no unit", got=ascii(root)[:120])
        integers, scale, zero_point = parts
        shape = weight_of(called_module(nodes[weights[root]])).shape
        if integers is None or scale is None or zero_point is None or integers.shape != shape:
            raise ArtifactError("a learned weight in the file has another shape than its layer", at=root)
        known = KnownIntegers(integers, QParams(scheme, scale, zero_point))
        known.load_state_dict(known.state_dict())  # which checks it
        layers[root] = nn.Module()
        layers[root].weight_fake_quant = known
        bias = tensors.get(f"{PREFIX}{index}.{LEARNED_BIAS}")
        if bias is not None:
            layer = called_module(nodes[weights[root]])
            set_learned_bias(layers[root], _checked_bias(bias, layer, root))
    return layers


def _checked_bias(bias: Tensor, layer: Any, root: str) -> Tensor:
    outputs = getattr(layer, "out_channels", getattr(layer, "out_features", None))
    if bias.shape != (outputs,) or bias.dtype != layer.weight.dtype or not bool(bias.isfinite().all()):
        raise ArtifactError(
            "a learned bias in the file does not fit its layer",
            at=root,
            got=f"{bias.dtype} {list(bias.shape)}",
            expected=f"finite, {layer.weight.dtype} [{outputs}]",
        )
    return bias
