"""Why ONNX Runtime computes a unit in float, by what stands in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fxquant.exporting.onnx.data_movement import DATA_MOVEMENT
from fxquant.exporting.onnx.dynamic import DYNAMIC
from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE
from fxquant.exporting.onnx.units import Unit

LAYERS = ("Conv", "Gemm", "MatMul", "ConvTranspose")
CLAMPS = ("Relu", "Clip", "Max", "Min")

INTEGER_KERNELS = frozenset(
    ("QGemm", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger", "MatMulNBits")
)
"""Types of nodes that compute on integers, beside those that begin with QLinear."""

INDEXING = frozenset(("Shape", "Range", "Where", "Cast", "ConstantOfShape", "ScatterND", "NonZero"))
"""Types of nodes that compute indices and shapes."""

MOVES_INTEGERS = DATA_MOVEMENT | {"NhwcMaxPool"}


def computing(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the types of nodes that compute; where there are none, those that move values; and else all."""
    without = [kind for kind in kinds if kind not in (QUANTIZE, DEQUANTIZE)]
    computed = [kind for kind in without if kind not in DATA_MOVEMENT and kind not in INDEXING]
    return tuple(dict.fromkeys(computed or without or kinds))


def is_integer_kernel(kinds: Mapping[str, int]) -> bool:
    """Tell whether the nodes of a unit, as the runtime made them, compute on integers, or only move them."""
    if any(kind.startswith("QLinear") or kind in INTEGER_KERNELS for kind in kinds):
        return True
    return DEQUANTIZE not in kinds and QUANTIZE not in kinds and all(kind in MOVES_INTEGERS for kind in kinds)


def is_dynamic_kernel(unit: Unit, kinds: Mapping[str, int]) -> bool:
    """Tell whether every layer of a unit that measures ranges in each call became a kernel that takes integers."""
    return DYNAMIC in unit.operators and DEQUANTIZE not in kinds and is_integer_kernel(kinds)


@dataclass(frozen=True, slots=True)
class Reason:
    """One row: what a unit has that keeps it float."""

    applies: Callable[[Unit], bool]
    words: str


def _layers(unit: Unit) -> list[str]:
    return [kind for kind in unit.operators if kind in LAYERS]


def _others(unit: Unit) -> list[str]:
    return [kind for kind in unit.operators if kind not in LAYERS and kind not in DATA_MOVEMENT]


REASONS = (
    Reason(
        lambda unit: DYNAMIC in unit.operators and "Add" in unit.operators,
        "its input is quantized with a range of each call, and the runtime's kernel for that takes no bias",
    ),
    Reason(
        lambda unit: DYNAMIC in unit.operators,
        "its input is quantized with a range of each call, and the runtime has its kernel for that in some layers only",
    ),
    Reason(lambda unit: "ConvTranspose" in unit.operators, "transposed convolutions have no integer kernel"),
    Reason(
        lambda unit: "Conv" in unit.operators and "Add" in unit.operators,
        "its sum is added before it is quantized; backend='onnxruntime' gives the convolution qparams of its own",
    ),
    Reason(
        lambda unit: bool(_layers(unit)) and any(kind in CLAMPS for kind in unit.operators),
        "the quantization range does not end at the bounds of its clamp",
    ),
    Reason(
        lambda unit: "Conv" in unit.operators and bool(_others(unit)),
        "a function stands between the convolution and its quantize",
    ),
    Reason(lambda unit: bool(_layers(unit)) and not unit.unrounded, "its result is float"),
    Reason(lambda unit: bool(_layers(unit)), "its weight or its input is of a kind without an integer kernel"),
)


def why_float(unit: Unit, kinds: Mapping[str, int]) -> str:
    """Return the reason of the first row that applies."""
    found = next((reason.words for reason in REASONS if reason.applies(unit)), None)
    return found or f"{', '.join(computing(unit.operators))}: no integer kernel"
