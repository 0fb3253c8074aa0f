"""Cuts the units out of an ONNX file: what is computed between one quantized value and the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE
from fxquant.exporting.onnx.extras import onnx

BOUNDARY = frozenset((QUANTIZE, DEQUANTIZE, "Clip"))
"""Types of nodes of which a unit has some at its ends."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a graph with one result."""

    name: str
    """Of the value in the plan, or of the output of the model."""
    result: str
    """Of the value in the file: integers, or the floats of an output."""
    unrounded: str
    """What the last quantize reads; empty where the result is float."""
    inputs: tuple[str, ...]
    """Quantized values and inputs of the model."""
    nodes: tuple[Any, ...]
    """In the order of the graph."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Types of its nodes, without those of its ends."""
        shapes = ("Shape", "Constant")
        return tuple(
            node.op_type
            for node in self.nodes
            if node.op_type not in (QUANTIZE, DEQUANTIZE, *shapes) and not self._is_last_clip(node)
        )

    def _is_last_clip(self, node: Any) -> bool:
        return node.op_type == "Clip" and node.output[0] == self.result and bool(self.unrounded)


def units_of(model: Any, quantized: Mapping[str, str]) -> list[Unit]:
    """Return the units of a model, in the order of its graph, then those that give its outputs.

    Args:
        model: A ``ModelProto``.
        quantized: Name of a quantized value in the file -> name in the plan. Units end there.
    """
    graph = model.graph
    makers = {output: node for node in graph.node for output in node.output}
    order = {node.output[0]: index for index, node in enumerate(graph.node)}
    constants = {initializer.name for initializer in graph.initializer}
    ends = {**quantized, **{output.name: output.name for output in graph.output}}
    found = []
    for result, name in sorted(ends.items(), key=lambda end: order.get(makers[end[0]].output[0], 0)):
        nodes, inputs = _between(result, makers, constants, set(quantized))
        quantize = next((node for node in nodes if node.op_type == QUANTIZE and _leads_to(node, result, makers)), None)
        unrounded = "" if quantize is None or result not in quantized else quantize.input[0]
        ordered = tuple(sorted(nodes, key=lambda node: order[node.output[0]]))
        found.append(Unit(name, result, unrounded, tuple(inputs), ordered))
    return found


def submodel(model: Any, unit: Unit, values: Mapping[str, Any]) -> Any:
    """Return a model of one unit, which gives its result and what it rounds to it.

    Args:
        model: A ``ModelProto``.
        unit: One of its units.
        values: Arrays, by the names of its inputs.
    """
    helper, proto = onnx().helper, onnx().TensorProto
    needed = {name for node in unit.nodes for name in read_by(node)}
    kinds = {info.name: info.type for info in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].shape)
        for name in unit.inputs
    ]
    outputs = []
    for name in (unit.result, unit.unrounded):
        if name and name not in unit.inputs:
            is_known = name in kinds and kinds[name].tensor_type.elem_type
            kind = kinds[name].tensor_type.elem_type if is_known else proto.FLOAT
            outputs.append(helper.make_tensor_value_info(name, kind, None))
    stored = [initializer for initializer in model.graph.initializer if initializer.name in needed]
    graph = helper.make_graph(list(unit.nodes), unit.name, inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def read_by(node: Any) -> list[str]:
    """Return the names that a node reads: its inputs, and those from outside in the graphs of loops and branches."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inside = {value.name for value in (*graph.input, *graph.initializer)}
            inside |= {output for each in graph.node for output in each.output}
            read = [name for each in graph.node for name in read_by(each)]
            names += [name for name in (*read, *(output.name for output in graph.output)) if name not in inside]
    return list(dict.fromkeys(names))


def _between(
    result: str, makers: Mapping[str, Any], constants: Iterable[str], ends: Iterable[str]
) -> tuple[list[Any], list[str]]:
    """Collect the nodes that lead to a result, from quantized values and inputs of the model."""
    nodes: dict[str, Any] = {}
    inputs: dict[str, None] = {}
    waiting = [result]
    while waiting:
        name = waiting.pop()
        if name in constants or not name:
            continue
        if name not in makers or (name in ends and name != result):
            inputs[name] = None
        elif makers[name].output[0] not in nodes:
            nodes[makers[name].output[0]] = makers[name]
            waiting += read_by(makers[name])
    return list(nodes.values()), list(inputs)


def _leads_to(quantize: Any, result: str, makers: Mapping[str, Any]) -> bool:
    """Tell whether a quantize gives a result, itself or through a clip of integers."""
    maker = makers[result]
    return maker is quantize or (maker.op_type == "Clip" and maker.input[0] == quantize.output[0])
