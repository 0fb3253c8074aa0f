"""A converted model as an ONNX file of quantize and dequantize nodes, shaped for one runtime."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from fxquant.artifact.format import check_place, path_of
from fxquant.commandline import VERSION
from fxquant.exporting.explicit import explicit
from fxquant.exporting.onnx.check import Expected, check_dtypes, check_runtime, checked_units, judged, kernels
from fxquant.exporting.onnx.naming import check_names, check_results, keep_input_names, name_values, qparams_of
from fxquant.exporting.onnx.passes import Choices, run_passes
from fxquant.exporting.onnx.program import quantize_names, translated
from fxquant.exporting.onnx.recording import record, tensors_in
from fxquant.exporting.onnx.report import OnnxReport
from fxquant.exporting.onnx.targets import OLDEST_OPSET, TARGETS, check_choices, check_target
from fxquant.exporting.onnx.writing import write
from fxquant.exporting.program import example_of, exported


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Any,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    target: str = "onnxruntime",
    opset: int = OLDEST_OPSET,
    weights: str = "auto",
    bias: str | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    check: bool | str = False,
    overwrite: bool = False,
) -> OnnxReport:
    """Write a converted model as ONNX: float operators between ``QuantizeLinear`` and ``DequantizeLinear``.

    A runtime makes integer kernels of the forms that it knows. Which units are fused is decided by ``prepare``: use the
    back end of the runtime, ``prepare(..., backend="onnxruntime")``, and ``convert(..., to="reference")``. A model that
    was planned for another back end is written, too; units without a kernel there run in float.

    Args:
        model: What ``convert`` or ``load`` gave, or what ``prepare_qat`` gave. Not changed.
        path: Where to; the file appears there whole, or not at all. Tensors of more than 1.5 GiB lie in ``PATH.data``.
        example_inputs: Tuple of the positional inputs; a lone tensor is taken as a one-tuple.
        example_kwargs: Keyword inputs, in any order; none in front of one that is given may be left to its default.
        target: ``"onnxruntime"``, ``"openvino"`` or ``"tensorrt"``: values that are quantized to what it does not take,
            weights and inputs that are integers among them, are refused.
        opset: Of the file, 21 or later.
        weights: ``"auto"``: weights of 4 bits lie in 4 bits only where they have blocks, else in 8, since only these
            have integer kernels. ``"packed"``: all of them lie in 4 bits.
        bias: ``"int32"``: biases of integer layers are rounded in the file to what kernels add. ``"float32"``: none is.
            None: those that are whole multiples already, as the back ends of the first two runtimes make them.
        dynamic_shapes: As ``torch.export.export`` takes it: ``({0: torch.export.Dim("batch")},)`` leaves the batch of
            one input open. None: every size is fixed.
        input_names, output_names: Of the graph.
        check: True: run every unit in ONNX Runtime, on the inputs that it has here, and report what is equal, what
            became an integer kernel, and why the rest did not. ``"openvino"``: the same with OpenVINO's kernels;
            whether the file is right is seen in ONNX Runtime, without its optimizations.
        overwrite: Whether a file may stand there already, and ``PATH.data`` where that is written, too.

    Returns:
        What was written. Print it.

    Raises:
        ExportError: a package is missing; an operator has no ONNX form; a result is no tensor; qparams that the target
            does not take; with ``check``, the file gives something else.
        ArtifactError: the place cannot be written to.
        UnknownNameError: there is no such target, form of weights or biases, or runtime to check in.
        InputError: the example inputs do not fit, or do not run; keyword inputs cannot be exported by position; or
            names of inputs and outputs are no names, are too many, or stand there twice.
        InputError, CalibrationError, LoweringError: as of :func:`explicit`.
    """
    # Check the arguments before anything takes time.
    check_choices(target, opset, weights, bias)
    place = path_of(path)
    check_place(place, overwrite)
    runtime = check_runtime(check) if check is not False else None
    # Run the explicit form once, and record what quantizes.
    made = explicit(model)
    args, kwargs = example_of(made, example_inputs, example_kwargs)
    quantized, outputs = record(made, args, kwargs)
    check_results(outputs)
    check_names(input_names, output_names, tensors_in((args, kwargs)), tensors_in(outputs))
    if runtime is not None:
        check_dtypes((args, kwargs), outputs)
    # Translate, and edit the graph for the runtime.
    program = exported(made, args, kwargs, dynamic_shapes)
    calls = dict(zip(quantize_names(program), quantized, strict=True))
    converted = translated(program, opset, input_names, output_names)
    keep_input_names(converted.graph, program.graph_signature.user_inputs, output_names or ())
    editor = run_passes(converted, Choices(bias, weights, TARGETS[target].gemm, TARGETS[target].sums))
    values = name_values(editor, {call: each.name for call, each in calls.items()})
    check_target(editor, target)
    # Write the file, and check it unit by unit.
    converted.producer_name, converted.producer_version = "fxquant", VERSION
    facts = {"version": VERSION, "target": target, "qparams": json.dumps(qparams_of(editor))}
    converted.metadata_props.update({f"fxquant.{key}": text for key, text in facts.items()})
    write(converted, place, overwrite)
    report = OnnxReport(path=str(place), target=target, opset=opset, size=place.stat().st_size)
    if runtime is None:
        return report
    expected = Expected(
        {value: calls[call] for value, call in values.items()},
        _tensors(converted.graph.inputs, (args, kwargs)),
        _tensors(converted.graph.outputs, outputs),
    )
    rows = checked_units(place, expected, runtime)
    return judged(replace(report, rows=rows, kernels=kernels(place, runtime), runtime=runtime.name))


def _tensors(values: Sequence[Any], tree: Any) -> dict[str, Tensor]:
    """Pair names of inputs or outputs with the tensors of a structure."""
    return {value.name: tensor for value, tensor in zip(values, tensors_in(tree), strict=True)}
