"""Drops clamps that the quantize after them implies: kernels for integers take no others."""

from __future__ import annotations

from typing import Any

from fxquant.exporting.onnx.editing import QUANTIZE, Editor, TensorQParams

Bounds = tuple[float | None, float | None]


def drop_implied_clamps(editor: Editor) -> None:
    """Take out each ReLU or clip whose bounds round to the first and the last integer of what reads it.

    Rounding never changes the order of two values, so what lies beyond a bound becomes the integer at that end with
    the clamp and without it.
    """
    for node in editor.nodes("Relu", "Clip", "Max", "Min"):
        found = bounds_of(editor, node)
        result = node.outputs[0]
        readers = editor.readers(result)
        if found is None or not readers or result.is_graph_output():
            continue
        value, bounds = found
        if all(reader.op_type == QUANTIZE and implies(editor, reader, bounds) for reader in readers):
            result.replace_all_uses_with(value)
            editor.graph.remove(node, safe=True)


def bounds_of(editor: Editor, node: Any) -> tuple[Any, Bounds] | None:
    """Return what a node clamps, and to what; None for other nodes."""
    if node.op_type == "Relu":
        return node.inputs[0], (0.0, None)
    if node.op_type == "Clip":
        low, high = (_number(editor, each) for each in (*node.inputs[1:], None, None)[:2])
        constant = all(each is None or _number(editor, each) is not None for each in node.inputs[1:])
        return (node.inputs[0], (low, high)) if constant else None
    if len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        bound = _number(editor, other)
        if bound is not None and _number(editor, value) is None:
            return value, ((bound, None) if node.op_type == "Max" else (None, bound))
    return None


def implies(editor: Editor, quantize: Any, bounds: Bounds) -> bool:
    """Tell whether a quantize gives the same integers without a clamp in front of it."""
    qparams = editor.qparams(quantize)
    if qparams is None:
        return False
    first, last = ends_behind(editor, quantize, qparams)
    low, high = bounds
    return (low is None or qparams.quantize(low) <= first) and (high is None or qparams.quantize(high) >= last)


def ends_behind(editor: Editor, quantize: Any, qparams: TensorQParams) -> tuple[int, int]:
    """Return the first and the last integer of what a quantize gives that are left: what reads it may clip it."""
    first, last = qparams.ends
    clips = [bounds_of(editor, reader) for reader in editor.readers(quantize.outputs[0]) if reader.op_type == "Clip"]
    if not clips or len(clips) != len(editor.readers(quantize.outputs[0])):
        return first, last
    lows = [first if clip is None or clip[1][0] is None else int(clip[1][0]) for clip in clips]
    highs = [last if clip is None or clip[1][1] is None else int(clip[1][1]) for clip in clips]
    return min(lows), max(highs)


def _number(editor: Editor, value: Any) -> float | None:
    tensor = editor.constant(value)
    return float(tensor) if tensor is not None and tensor.numel() == 1 else None
