"""What each runtime takes, whatever the model was planned for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fxquant.errors import ExportError, UnknownNameError
from fxquant.exporting.onnx.editing import QUANTIZE, Editor, TensorQParams
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


TARGETS: Mapping[str, Target] = {
    "onnxruntime": Target(lambda qparams: True, "any integers", "integers of 8 or 16 bits", 23, gemm=True),
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
    ),
}


def check_target(editor: Editor, name: str) -> None:
    """Refuse qparams that a runtime does not take, or takes and gives something else for.

    Raises:
        ExportError: the message names the first value.
    """
    target = TARGETS[name]
    for node in editor.nodes(QUANTIZE):
        qparams = editor.qparams(node)
        if qparams is not None and not target.takes(qparams):
            raise ExportError(
                f"target {name!r} takes {target.words}",
                at=str(node.outputs[0].name).removesuffix("_q"),
                got=f"{qparams.dtype.lower()}, zero point {qparams.zero_point}",
                expected=target.expected,
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
