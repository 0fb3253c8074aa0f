"""The explicit form as a graph of onnx_ir."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

from fxquant.errors import ExportError
from fxquant.exporting.onnx.extras import onnx, onnxscript
from fxquant.exporting.onnx.translation import Translation
from fxquant.exporting.program import first_lines, quiet


def translated(
    program: torch.export.ExportedProgram,
    opset: int,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> Any:
    """Translate an exported program to ONNX.

    Returns:
        A model of onnx_ir.

    Raises:
        ExportError: an operator has no translation; the message names it and the line of the user's.
    """
    onnx(), onnxscript()
    check_dynamic_ranges(program)
    try:
        with quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                custom_translation_table=Translation(opset).table(),
                input_names=input_names,
                output_names=output_names,
                verbose=False,
            )
    except Exception as error:
        raise _untranslated(error, program) from error
    assert made is not None  # no path was given
    return made.model


def check_dynamic_ranges(program: torch.export.ExportedProgram) -> None:
    """Refuse qparams of the run time that ``DynamicQuantizeLinear`` does not compute: it measures all of uint8.

    Raises:
        ExportError: the message names the node.
    """
    operators = torch.ops.quantized_decomposed
    for node in program.graph.nodes:
        if node.target is operators.dequantize_per_token.default:
            raise ExportError(
                "ONNX has no operator that measures the range of each token while the model runs",
                at=node,
                got="per token",
                expected="one range for the whole input",
                hint="quantize the layer by default_dynamic_qconfig",
            )
        symmetric = node.target is operators.choose_qparams_symmetric.tensor
        if not symmetric and node.target is not operators.choose_qparams.tensor:
            continue
        quant_min, quant_max, dtype = node.args[1], node.args[2], node.args[4]
        if symmetric or (quant_min, quant_max, dtype) != (0, 255, torch.uint8):
            raise ExportError(
                "ONNX has no operator that measures this range while the model runs",
                at=node,
                got=f"{str(dtype).removeprefix('torch.')} [{quant_min}, {quant_max}]" + ", symmetric" * symmetric,
                expected="affine uint8 [0, 255]",
                hint="quantize the layer by default_dynamic_qconfig",
            )


def quantize_names(program: torch.export.ExportedProgram) -> list[str]:
    """Return the names of the nodes that quantize per tensor, in the order of the graph."""
    operator = torch.ops.quantized_decomposed.quantize_per_tensor.default
    return [node.name for node in program.graph.nodes if node.target is operator]


def _untranslated(error: BaseException, program: torch.export.ExportedProgram) -> ExportError:
    """Make an error of what the exporter raised, with the node that it stopped at."""
    text = "\n".join(str(each) for each in _chain(error))
    found = re.search(r"No ONNX function found for <?OpOverload\(op='([\w.:]+)', overload='(\w+)'\)", text)
    at = re.search(r"Error when translating node %(\w+)", text)
    node = None if at is None else next((n for n in _translated_nodes(program) if n.name == at[1]), None)
    if found is None:
        cause = list(_chain(error))[-1]  # those before it say that something failed, and what to report to torch
        got = f"{type(cause).__name__}: {first_lines(cause)}"
        return ExportError("torch.onnx cannot translate this model", at=node, got=got)
    return ExportError(
        "this operator has no ONNX form",
        at=node,
        got=f"{found[1]}.{found[2]}",
        expected="an operator that torch.onnx translates",
        hint="it is the float operator that has no translation; write it with others",
    )


def _translated_nodes(program: torch.export.ExportedProgram) -> list[Node]:
    """Return the nodes as the exporter sees them, with the user's lines."""
    with quiet():
        return list(program.run_decompositions().graph.nodes)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
