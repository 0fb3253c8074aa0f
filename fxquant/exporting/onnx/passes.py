"""The passes over an ONNX graph, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxquant.exporting.onnx.biases import bias_to_int32
from fxquant.exporting.onnx.clamps import drop_implied_clamps
from fxquant.exporting.onnx.data_movement import quantize_data_movement
from fxquant.exporting.onnx.dynamic import join_dynamic_quantization
from fxquant.exporting.onnx.editing import Editor
from fxquant.exporting.onnx.layers import (
    gemm_of_floats_to_product,
    hard_sigmoid_to_sum,
    matrix_products,
    mean_to_global_pool,
    product_to_gemm,
)
from fxquant.exporting.onnx.weights import pack_weights
from fxquant.exporting.program import quiet


@dataclass(frozen=True, slots=True)
class Choices:
    """What the caller chose."""

    bias: str | None = None
    weights: str = "auto"
    gemm: bool = True
    """Whether the runtime fuses products of two dimensions better than others."""
    sums: bool = True
    """Whether it adds any integers, and has no kernel for a hard sigmoid of them."""


WEIGHTS = ("auto", "packed")

BIAS_ROUNDS: dict[str | None, bool | None] = {None: None, "int32": True, "float32": False}

PASSES: tuple[Callable[[Editor, Choices], None], ...] = (
    lambda editor, choices: join_dynamic_quantization(editor),
    lambda editor, choices: drop_implied_clamps(editor),
    lambda editor, choices: mean_to_global_pool(editor),
    lambda editor, choices: hard_sigmoid_to_sum(editor) if choices.sums else None,
    lambda editor, choices: matrix_products(editor),
    lambda editor, choices: quantize_data_movement(editor),  # before what looks for the dequantize of a product
    lambda editor, choices: gemm_of_floats_to_product(editor),
    lambda editor, choices: matrix_products(editor),  # again, for the products that are new
    lambda editor, choices: product_to_gemm(editor) if choices.gemm else None,
    lambda editor, choices: quantize_data_movement(editor),  # again, for the reshapes that are new
    lambda editor, choices: bias_to_int32(editor, BIAS_ROUNDS[choices.bias]),  # a bias is read from its layer
    lambda editor, choices: pack_weights(editor, choices.weights == "packed"),
)


def run_passes(model: Any, choices: Choices) -> Editor:
    """Bring a graph into the form that runtimes have integer kernels for."""
    editor = Editor(model)
    common = editor.ir.passes.common
    clean = editor.ir.passes.Sequential(
        common.RemoveUnusedNodesPass(), common.DeduplicateInitializersPass(), common.RemoveUnusedOpsetsPass()
    )
    with quiet():  # it logs which constants it does not join
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        clean(model)
        for run in PASSES:
            run(editor, choices)
        clean(model)
    return editor
