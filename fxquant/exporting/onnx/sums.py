"""How far two runs of one sum of products may be apart in float32, when they add in another order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fxquant.exporting.onnx.extras import onnx
from fxquant.exporting.onnx.reasons import LAYERS
from fxquant.exporting.onnx.runtimes import OnnxRuntime
from fxquant.exporting.onnx.units import Unit, submodel

ROUNDOFF = 2.0**-24
"""The largest relative error of one float32 addition."""


def error_of_sums(model: Any, unit: Unit, arrays: Mapping[str, Any], runtime: OnnxRuntime) -> float:
    """Estimate the largest difference between two orders of adding up what the layers of a unit multiply.

    A sum of K products ``x * w`` has an error of about ``sqrt(K) * 2^-24 * sum(|x| * |w|)``, where the roundings of its
    additions are independent; two sums differ by twice that. The sums of sizes are what the layers give for the sizes
    of their inputs and weights.

    Args:
        model: A ``ModelProto``.
        unit: One of its units.
        arrays: Values of its inputs.
        runtime: Runs the layers, with its optimizations off.

    Returns:
        In float values, for the place where it is largest; 0 if the unit has no layer.

    Source:
        Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41(5), 2019,
        theorem 3.1.
    """
    largest = 0.0
    for layer in unit.nodes:
        if layer.op_type in LAYERS:
            weight, sums = _sums_of_sizes(model, unit, layer, arrays, runtime)
            size = float(sums[sums.isfinite()].max()) if bool(sums.isfinite().any()) else 0.0
            largest = max(largest, 2 * math.sqrt(_terms(layer, weight)) * ROUNDOFF * size)
    return largest


def _sums_of_sizes(
    model: Any, unit: Unit, layer: Any, arrays: Mapping[str, Any], runtime: OnnxRuntime
) -> tuple[Tensor, Tensor]:
    """Run a layer on the sizes of its inputs; return the size of its weight, and what it gives."""
    helper = onnx().helper
    sizes = {name: f"{name}#size" for name in layer.input if name}
    nodes = list(unit.nodes[: list(unit.nodes).index(layer)])
    nodes += [helper.make_node("Abs", [name], [size]) for name, size in sizes.items()]
    inside = onnx().NodeProto()
    inside.CopyFrom(layer)
    del inside.input[:]
    inside.input.extend(sizes.get(name, name) for name in layer.input)
    wanted = [sizes[layer.input[1]], layer.output[0]]
    part = submodel(model, Unit(unit.name, wanted[1], wanted[0], unit.inputs, (*nodes, inside)), arrays)
    sums, weight = runtime.unfused(
        part.SerializeToString(), [wanted[1], wanted[0]], {n: arrays[n] for n in unit.inputs}
    )
    return weight.to(torch.float32), sums.to(torch.float32)


def _terms(layer: Any, weight: Tensor) -> int:
    """Count the products that a layer adds up for each of its results."""
    if layer.op_type == "Conv":
        return weight[0].numel()
    if layer.op_type == "ConvTranspose":
        return weight.numel() // max(weight.shape[1], 1)
    transposed = any(attribute.name == "transB" and attribute.i for attribute in layer.attribute)
    return weight.shape[-1] if transposed or weight.dim() == 1 else weight.shape[-2]
