"""Runs a file in ONNX Runtime, unit by unit with the inputs that fxquant's units have."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import ExportError, listing, warn
from fxquant.exporting.onnx.editing import QUANTIZE
from fxquant.exporting.onnx.extras import onnx, onnxruntime
from fxquant.exporting.onnx.reasons import computing, is_integer_kernel, why_float
from fxquant.exporting.onnx.recording import Quantized
from fxquant.exporting.onnx.report import OnnxReport, OnnxRow
from fxquant.exporting.onnx.units import Unit, submodel, units_of

NEAR_TIE = 5e-3
"""Steps from the middle between two integers within which sums in another order may round to either, at 8 bits."""

FLOAT_EQUAL = 1e-5
"""Part of the largest value by which two float results may differ."""

MOST_BREACHES = 1e-3
"""Part of the values of a unit that may differ, ties not counted, before the file is called wrong."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What fxquant's model gave on the inputs of the check."""

    quantized: Mapping[str, Quantized]
    """By the names that the values have in the file."""
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def check_runtime() -> None:
    """Refuse to check without the runtime, before any file is written.

    Raises:
        ExportError: it is not installed.
    """
    onnxruntime()


def checked_units(path: Path, expected: Expected) -> tuple[OnnxRow, ...]:
    """Compare each unit, with the runtime's optimizations off and on, and read what it made of it."""
    model = onnx().load(str(path))
    values = {name: each.integers for name, each in expected.quantized.items()}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in {**expected.inputs, **values}.items()}
    found = units_of(model, {name: each.name for name, each in expected.quantized.items()})
    wanted = {**values, **expected.outputs}
    return tuple(_checked(model, unit, arrays, wanted[unit.result]) for unit in found)


def kernels(path: Path) -> Counter[str]:
    """Count the types of the nodes that the runtime makes of the whole file."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "optimized.onnx"
        session(str(path), optimized=True, save_to=made)
        return operators(made)


def session(model: Any, *, optimized: bool, save_to: Path | None = None) -> Any:
    """Make a session on the CPU with one thread.

    Args:
        model: A path, or bytes.
        optimized: Whether the runtime may fuse and replace nodes.
        save_to: Where it writes the graph that it runs.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.log_severity_level = 3  # saving an optimized graph is warned of
    options.intra_op_num_threads = 1
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def operators(path: Path) -> Counter[str]:
    """Count the types of the nodes in a file."""
    return Counter(node.op_type for node in onnx().load(str(path), load_external_data=False).graph.node)


def _checked(model: Any, unit: Unit, arrays: Mapping[str, Any], wanted: Tensor) -> OnnxRow:
    part = submodel(model, unit, arrays).SerializeToString()
    inputs = {name: arrays[name] for name in unit.inputs}
    names = [name for name in (unit.result, unit.unrounded) if name and name not in unit.inputs]
    unfused = _run(part, names, inputs, optimized=False)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "optimized.onnx"
        alone = submodel(model, Unit(unit.name, unit.result, "", unit.inputs, unit.nodes), arrays)
        fused = _run(alone.SerializeToString(), names[:1], inputs, optimized=True, save_to=made)
        kinds = operators(made)
    kernel = computing(tuple(kinds))
    is_integer = is_integer_kernel(kinds)
    off, beyond, steps = compared(unfused[0], wanted, _distance(unit, model, unfused, arrays))
    fused_off, _, fused_steps = compared(fused[0], wanted, None)
    return OnnxRow(
        name=unit.name,
        operators=computing(unit.operators),
        unrounded=unit.unrounded,
        kernels=kernel,
        is_integer=is_integer,
        values=wanted.numel(),
        unfused_different=off,
        unfused_beyond_ties=beyond,
        unfused_steps=steps,
        fused_different=fused_off,
        fused_steps=fused_steps,
        reason="" if is_integer or not unit.operators else why_float(unit, kinds),
    )


def _run(
    model: bytes, names: Sequence[str], inputs: Mapping[str, Any], *, optimized: bool, save_to: Path | None = None
) -> list[Tensor]:
    runner = session(model, optimized=optimized, save_to=save_to)
    return [torch.from_numpy(array) for array in runner.run(list(names), dict(inputs))]


def _distance(unit: Unit, model: Any, results: Sequence[Tensor], arrays: Mapping[str, Any]) -> Tensor | None:
    """Return how far each value that was rounded lay from the middle between two integers, in steps."""
    if not unit.unrounded:
        return None
    value = results[1] if len(results) > 1 else torch.from_numpy(arrays[unit.unrounded])
    quantize = next(node for node in unit.nodes if node.op_type == QUANTIZE and node.input[0] == unit.unrounded)
    stored = {initializer.name: initializer for initializer in model.graph.initializer}
    scale = torch.from_numpy(onnx().numpy_helper.to_array(stored[quantize.input[1]]).copy())
    if scale.numel() > 1:
        return None
    steps = value / scale
    return ((steps - steps.floor()) - 0.5).abs()


def compared(found: Tensor, wanted: Tensor, distance: Tensor | None) -> tuple[int, int, float]:
    """Return how many values differ, how many of these were no ties, and the largest difference.

    Args:
        found: What the runtime gave.
        wanted: What fxquant gave; integers, or floats.
        distance: Of each value before it was rounded from the nearest tie.
    """
    if wanted.is_floating_point():
        relative = _relative(found.double(), wanted.double())
        off = int((relative > FLOAT_EQUAL).sum())
        return off, off, float(relative.max()) if relative.numel() else 0.0
    difference = (found.to(torch.int64) - wanted.to(torch.int64)).abs()
    differs = difference > 0
    near = NEAR_TIE * max(1, (int(wanted.max()) - int(wanted.min())) // 256) if wanted.numel() else NEAR_TIE
    beyond = differs if distance is None else differs & (distance > near)
    return int(differs.sum()), int(beyond.sum()), float(difference.max()) if difference.numel() else 0.0


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    """Return how far floats differ, as parts of the largest finite value.

    The same infinity, and NaN at the same place, are equal; other values that are not finite differ infinitely.
    """
    finite = wanted[wanted.isfinite()].abs()
    largest = max(float(finite.max()), 1e-30) if finite.numel() else 1.0
    equal = (found == wanted) | (found.isnan() & wanted.isnan())
    relative = ((found - wanted).abs() / largest).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return torch.where(equal, 0.0, relative)


def judged(report: OnnxReport) -> OnnxReport:
    """Give a report back that shows the same numbers as fxquant.

    Raises:
        ExportError: more than ties differ.
    """
    wrong = [row for row in report.breaches if row.unfused_beyond_ties > MOST_BREACHES * row.values]
    if wrong:
        row = wrong[0]
        raise ExportError(
            "the exported model gives something else",
            at=row.name,
            got=f"{100 * row.unfused_different / row.values:.3g} % of values differ, up to {row.unfused_steps:g} steps",
            expected="equal away from ties, on the same inputs",
            hint="the file is written; check=False leaves it unread. " + " ".join(row.operators),
        )
    coarse = [f"{row.name} ({' '.join(row.kernels)}): {row.fused_steps:.3g}" for row in report.rows if is_coarse(row)]
    if coarse:
        warn("ONNX Runtime's kernels differ by more than one step from the file's operators", got=listing(coarse))
    return report


def is_coarse(row: OnnxRow) -> bool:
    """Tell whether a kernel for integers is off by more than one step where the operators of the file are not."""
    return bool(row.unrounded) and row.fused_steps > 1
