"""Puts what only moves values between a dequantize and a quantize of the same qparams: it then runs on integers."""

from __future__ import annotations

from typing import Any

from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE, Editor

DATA_MOVEMENT = frozenset(
    (
        *("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Expand"),
        *("GatherElements", "GatherND", "Tile", "Identity", "DepthToSpace", "SpaceToDepth", "Pad", "Resize"),
    )
)
"""Types of operators that give values of their first input."""

INTEGER_KERNELS = frozenset(
    (
        *("Conv", "Gemm", "MatMul", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid"),
        *("LeakyRelu", "Softmax"),
    )
)
"""Types of operators that runtimes compute on integers between a dequantize and a quantize."""


def quantize_data_movement(editor: Editor) -> None:
    """Quantize what moves values of a dequantize and leads to an operator that may run on integers.

    A runtime looks for the dequantize right in front of that operator. The integers are the same. A positive constant
    that they are multiplied with becomes part of the scale.
    """
    wanted: set[Any] = set()
    for node in reversed(list(editor.graph)):
        moves = is_data_movement(editor, node) or _factor(editor, node) is not None or _joins(node)
        if moves and any(_is_wanted(reader, wanted) for reader in _readers_of(editor, node)):
            wanted.add(node)
    for node in [node for node in editor.graph if node in wanted]:
        source = _source(editor, node)
        if source is None:
            continue
        if (factor := _factor(editor, node)) is not None:
            _scale(editor, node, source, factor)
            continue
        for result in node.outputs:
            if any(reader.op_type != QUANTIZE for reader in editor.readers(result)):
                editor.quantize_again(result, source)


def _source(editor: Editor, node: Any) -> Any:
    """Return the dequantize whose values a node moves; None where there is none, or several that differ."""
    joined = node.inputs if _joins(node) else node.inputs[:1]
    qparams = {editor.source(value) for value in joined}
    return joined[0].producer() if len(qparams) == 1 and None not in qparams else None


def _joins(node: Any) -> bool:
    """Tell whether a node gives the values of all its inputs."""
    return node.domain == "" and node.op_type == "Concat"


def _factor(editor: Editor, node: Any) -> float | None:
    """Return the positive constant that a node multiplies its first input with."""
    if node.domain != "" or node.op_type not in ("Mul", "Div"):
        return None
    constant = editor.constant(node.inputs[1])
    if constant is None or constant.numel() != 1 or not 0 < abs(float(constant)) < float("inf"):
        return None
    factor = float(constant) if node.op_type == "Mul" else 1 / float(constant)
    return factor if factor > 0 else None


def _scale(editor: Editor, node: Any, source: Any, factor: float) -> None:
    """Dequantize with a scale that holds the factor."""
    scale = editor.constant(source.inputs[1])
    assert scale is not None  # its qparams are constants
    stored = editor.initializer(scale * factor, f"{source.inputs[1].name}_scaled")
    inputs = [source.inputs[0], stored, source.inputs[2]]
    result = editor.insert(DEQUANTIZE, inputs, before=node, like=node.outputs[0])
    node.outputs[0].replace_all_uses_with(result, replace_graph_outputs=True)


def is_data_movement(editor: Editor, node: Any) -> bool:
    """Tell whether a node gives nothing but values of its first input, or 0."""
    if node.domain != "" or node.op_type not in DATA_MOVEMENT:
        return False
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") == "constant" and len(node.inputs) > 2:
        value = editor.constant(node.inputs[2])
        return node.inputs[2] is None or (value is not None and not float(value))
    return True


def _readers_of(editor: Editor, node: Any) -> list[Any]:
    return [reader for result in node.outputs for reader in editor.readers(result)]


def _is_wanted(reader: Any, wanted: set[Any]) -> bool:
    return reader in wanted or (reader.domain == "" and reader.op_type in INTEGER_KERNELS)
