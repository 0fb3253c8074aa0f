"""What each runtime takes, whatever the model was planned for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fxquant.errors import ExportError, UnknownNameError
from fxquant.exporting.onnx.clamps import ends_behind
from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE, Editor, TensorQParams
from fxquant.exporting.onnx.passes import BIAS_ROUNDS, WEIGHTS
from fxquant.registry import did_you_mean

OLDEST_OPSET = 21
"""The first with integers of 4 and 16 bits, and with blocks."""


@dataclass(frozen=True, slots=True)
class Target:
    """One runtime."""

    takes: Callable[[TensorQParams], bool]
    """Whether it runs activations on these qparams."""
    words: str
    """What it takes."""
    expected: str
    newest_opset: int
    """The newest that was tried."""
    gemm: bool = False
    """Whether it fuses products of two dimensions better than others."""
    sums: bool = False
    """Whether it adds any integers, and has no kernel for a hard sigmoid of them."""
    any_weights: bool = True
    """Whether it takes weights other than int8 and int4 with zero points 0."""
    narrow_ranges: bool = True
    """Whether it clips integers, where fewer are used than their type has."""
    dynamic_ranges: bool = True
    """Whether it measures a range while it runs."""


TARGETS: Mapping[str, Target] = {
    "onnxruntime": Target(lambda qparams: True, "any integers", "integers of 8 or 16 bits", 23, gemm=True, sums=True),
    "openvino": Target(
        lambda qparams: qparams.dtype == "UINT8" or (qparams.dtype == "INT8" and qparams.zero_point == 0),
        "uint8, or int8 with zero point 0",
        "affine uint8 or symmetric int8 activations",
        23,
    ),
    "tensorrt": Target(
        lambda qparams: qparams.dtype == "INT8" and qparams.zero_point == 0,
        "int8 with zero point 0",
        "symmetric int8 activations",
        21,
        any_weights=False,
        narrow_ranges=False,
        dynamic_ranges=False,
    ),
}


def check_target(editor: Editor, name: str) -> None:
    """Refuse qparams that a runtime does not take, or takes and gives something else for.

    Raises:
        ExportError: the message names the first value.
    """
    for node in editor.nodes(QUANTIZE, DEQUANTIZE):
        _check_activation(editor, node, name)
        _check_weight(editor, node, name)
    for node in editor.nodes("DynamicQuantizeLinear"):
        if not TARGETS[name].dynamic_ranges:
            raise ExportError(
                f"target {name!r} measures no range while it runs",
                at=str(node.outputs[0].name),
                got="a layer that measures its input in each call",
                expected="layers whose input was calibrated",
                hint=f"prepare(..., backend={name!r})",
            )


def _check_activation(editor: Editor, node: Any, name: str) -> None:
    """Look at what is quantized, and at inputs of the model that are integers already."""
    target, qparams = TARGETS[name], editor.qparams(node)
    is_quantize = node.op_type == QUANTIZE
    if qparams is None or not (is_quantize or node.inputs[0].is_graph_input()):
        return
    at = str((node.outputs if is_quantize else node.inputs)[0].name).removesuffix("_q").removesuffix("_unclipped")
    if not target.takes(qparams):
        raise ExportError(
            f"target {name!r} takes {target.words}",
            at=at,
            got=f"{qparams.dtype.lower()}, zero point {qparams.zero_point}",
            expected=target.expected,
            hint=f"prepare(..., backend={name!r})",
        )
    if is_quantize and not target.narrow_ranges and (ends := ends_behind(editor, node, qparams)) != qparams.ends:
        raise ExportError(
            f"target {name!r} clips no integers",
            at=at,
            got=f"{qparams.dtype.lower()} [{ends[0]}, {ends[1]}]",
            expected=f"all of {qparams.dtype.lower()}, [{qparams.ends[0]}, {qparams.ends[1]}]",
            hint=f"prepare(..., backend={name!r})",
        )


def _check_weight(editor: Editor, node: Any, name: str) -> None:
    """Look at a constant that is dequantized; biases, of int32, are none of the weights."""
    if TARGETS[name].any_weights or node.op_type != DEQUANTIZE:
        return
    stored = node.inputs[0]
    if stored.producer() is not None or stored.is_graph_input() or stored.dtype is None or stored.dtype.name == "INT32":
        return
    points = editor.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    zero_point = 0 if points is None or not bool(points.any()) else int(points[points != 0].flatten()[0])
    if stored.dtype.name not in ("INT8", "INT4") or zero_point:
        raise ExportError(
            f"target {name!r} takes symmetric weights",
            at=str(stored.name),
            got=f"{stored.dtype.name.lower()}, zero point {zero_point}",
            expected="int8, or int4 in blocks, with zero point 0",
            hint=f"prepare(..., backend={name!r})",
        )


def check_choices(target: str, opset: int, weights: str, bias: str | None) -> None:
    """Refuse arguments that nothing is known by.

    Raises:
        UnknownNameError: a target or a form that does not exist.
        ExportError: an opset that cannot hold integers of 4 and 16 bits, that was never tried, or that is no whole
            number.
    """
    for what, given, known in (
        ("target", target, tuple(TARGETS)),
        ("form of weights", weights, WEIGHTS),
        ("form of biases", bias, tuple(BIAS_ROUNDS)),
    ):
        if given not in known:
            words = ", ".join(map(str, known))
            hint = did_you_mean(str(given), [str(each) for each in known])
            raise UnknownNameError(f"unknown {what}", got=repr(given), expected=words, hint=hint)
    newest = TARGETS[target].newest_opset
    if not isinstance(opset, int):
        raise ExportError("opset is no whole number", got=f"opset={opset!r}", expected=f"{OLDEST_OPSET} to {newest}")
    if not OLDEST_OPSET <= opset <= newest:
        raise ExportError(
            f"opset {opset} cannot hold this model" if opset < OLDEST_OPSET else f"opset {opset} was never tried",
            got=f"opset={opset}, target={target!r}",
            expected=f"opset {OLDEST_OPSET} to {newest}; integers of 4 bits and blocks begin with {OLDEST_OPSET}",
        )
