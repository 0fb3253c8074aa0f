"""Compares a file with the model, unit by unit with the inputs that the units have in the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import ExportError, FxQuantError, UnknownNameError, listing, warn
from fxquant.exporting.onnx.editing import QUANTIZE
from fxquant.exporting.onnx.extras import onnx
from fxquant.exporting.onnx.reasons import computing, is_dynamic_kernel
from fxquant.exporting.onnx.recording import Quantized, tensors_in
from fxquant.exporting.onnx.report import OnnxReport, OnnxRow
from fxquant.exporting.onnx.runtimes import RUNTIMES, OnnxRuntime, cannot_run
from fxquant.exporting.onnx.sums import error_of_sums
from fxquant.exporting.onnx.units import Unit, submodel, units_of
from fxquant.registry import did_you_mean

MOST_BREACHES = 1e-3
"""Part of the values of a unit that may differ, ties not counted, before the file is called wrong."""


OVERFLOWS = (
    "on processors without VNNI its layers add two products in 16 bits, which weights of 8 bits overflow; "
    "those of 7 do not: weight.with_args(reduce_range=True) in a QConfig"
)
"""What to do where kernels of ONNX Runtime are off by many steps."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Says how far two runs of the same float operators may be apart."""

    equal: float = 1e-5
    """Part of the largest value by which two float results may differ: what ``exp``, ``erf``, means and norms of two
    libraries do."""
    tie: float = 2e-5
    """Part of the range of integers, at least 256 steps, within which a value may lie on either side of the middle
    between two of them: each of two results may be off by ``equal``. Sums of products have a bound of their own."""


HALF = Tolerance(4e-3, 1.2e-3)
"""Of float16, whose values near 256 steps are an eighth of a step apart: results of the same sums are the same, or
neighbours, so that a tie is nearer than two results may be."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What fxquant's model gave on the inputs of the check."""

    quantized: Mapping[str, Quantized]
    """By the names that the values have in the file."""
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def check_runtime(check: bool | str) -> OnnxRuntime:
    """Return the runtime that units are to be run in, before any file is written.

    Raises:
        UnknownNameError: there is no such one here.
        ExportError: it is not installed.
    """
    name = "onnxruntime" if check is True else check
    if not isinstance(name, str) or name not in RUNTIMES:
        raise UnknownNameError(
            "there is no such runtime to check in",
            got=repr(check),
            expected=f"True, False, {', '.join(map(repr, RUNTIMES))}",
            hint=did_you_mean(str(check), list(RUNTIMES)),
        )
    runtime = RUNTIMES[name]
    runtime.require()
    return runtime


def check_dtypes(inputs: Any, outputs: Any) -> None:
    """Refuse values that cannot be handed to a runtime, before any file is written.

    Raises:
        ExportError: one is of bfloat16.
    """
    if any(tensor.dtype == torch.bfloat16 for tensor in (*tensors_in(inputs), *tensors_in(outputs))):
        raise ExportError(
            "the check cannot hand values of bfloat16 to a runtime",
            got="bfloat16",
            expected="float32 or float16",
            hint="check=False writes the file; prepare(model.float(), ...) makes one that can be run",
        )


def checked_units(path: Path, expected: Expected, runtime: OnnxRuntime) -> tuple[OnnxRow, ...]:
    """Compare each unit, with the optimizations of a runtime off and on, and read what it made of it.

    Raises:
        ExportError: it cannot run a unit.
    """
    model = onnx().load(str(path))
    values = {name: each.integers for name, each in expected.quantized.items()}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in {**expected.inputs, **values}.items()}
    found = units_of(model, {name: each.name for name, each in expected.quantized.items()})
    wanted = {**values, **expected.outputs}
    rows = []
    for unit in found:
        try:
            rows.append(_checked(model, unit, arrays, wanted[unit.result], runtime))
        except FxQuantError:
            raise
        except Exception as error:
            raise cannot_run(runtime.name, unit.name, error) from error
    return tuple(rows)


def kernels(path: Path, runtime: OnnxRuntime) -> Counter[str]:
    """Count the types of the nodes that a runtime makes of the whole file.

    Raises:
        ExportError: it cannot run the file.
    """
    try:
        return runtime.kernels(path)
    except FxQuantError:
        raise
    except Exception as error:
        raise cannot_run(runtime.name, path.name, error) from error


def _checked(model: Any, unit: Unit, arrays: Mapping[str, Any], wanted: Tensor, runtime: OnnxRuntime) -> OnnxRow:
    part = submodel(model, unit, arrays)
    inputs = {name: arrays[name] for name in unit.inputs}
    tolerance = HALF if _in_half(part) else Tolerance()
    names = [name for name in (unit.result, unit.unrounded) if name and name not in unit.inputs]
    unfused = runtime.unfused(part.SerializeToString(), names, inputs)
    alone = submodel(model, Unit(unit.name, unit.result, "", unit.inputs, unit.nodes), arrays)
    fused = runtime.fused(alone.SerializeToString(), names[:1], inputs)
    if unit.unrounded or wanted.is_floating_point():
        off, beyond, steps = _judged_unfused(unit, model, unfused, wanted, arrays, tolerance, runtime)
        fused_off, _, fused_steps = compared(fused.results[0], wanted, None, tolerance)
    else:  # indices and truth values: where values are equal, runtimes choose in another order
        off, beyond, steps = int((unfused[0] != wanted).sum()), 0, 0.0
        fused_off, fused_steps = int((fused.results[0] != wanted).sum()), 0.0
    quantized = [name for name in unit.inputs if arrays[name].dtype.itemsize <= 2 and arrays[name].dtype.kind in "iu"]
    has_integers = bool(quantized or unit.unrounded)  # else it only moves floats or indices
    is_integer = (fused.is_integer and has_integers) or is_dynamic_kernel(unit, fused.kinds)
    return OnnxRow(
        name=unit.name,
        operators=computing(unit.operators),
        unrounded=unit.unrounded,
        kernels=fused.computing,
        is_integer=is_integer,
        values=wanted.numel(),
        unfused_different=off,
        unfused_beyond_ties=beyond,
        unfused_steps=steps,
        fused_different=fused_off,
        fused_steps=fused_steps,
        reason="" if is_integer or not unit.operators else runtime.reason(unit, fused),
    )


def _judged_unfused(
    unit: Unit,
    model: Any,
    results: Sequence[Tensor],
    wanted: Tensor,
    arrays: Mapping[str, Any],
    tolerance: Tolerance,
    runtime: OnnxRuntime,
) -> tuple[int, int, float]:
    """Compare a unit that ran without optimizations. What differs is judged by the error of its own sums."""
    scale = _scale_of(unit, model)
    distance = None if scale is None else _distance(unit, scale, results, arrays)
    found = compared(results[0], wanted, distance, tolerance)
    if not found[1] or scale is None:
        return found
    return compared(results[0], wanted, distance, tolerance, error_of_sums(model, unit, arrays, runtime) / scale)


def _in_half(part: Any) -> bool:
    """Tell whether a unit computes in float16, or casts to it."""
    half = onnx().TensorProto.FLOAT16
    casts = [attribute.i for node in part.graph.node if node.op_type == "Cast" for attribute in node.attribute]
    return half in (*casts, *(stored.data_type for stored in part.graph.initializer))


def _scale_of(unit: Unit, model: Any) -> float | None:
    """Return the scale of what a unit rounds to; None where it rounds nothing, or has one for each channel."""
    if not unit.unrounded:
        return None
    quantize = next(node for node in unit.nodes if node.op_type == QUANTIZE and node.input[0] == unit.unrounded)
    stored = next((each for each in model.graph.initializer if each.name == quantize.input[1]), None)
    scale = None if stored is None else onnx().numpy_helper.to_array(stored)
    return float(scale) if scale is not None and scale.size == 1 else None


def _distance(unit: Unit, scale: float, results: Sequence[Tensor], arrays: Mapping[str, Any]) -> Tensor:
    """Return how far each value that was rounded lay from the middle between two integers, in steps."""
    value = results[1] if len(results) > 1 else torch.from_numpy(arrays[unit.unrounded])
    steps = value / torch.tensor(scale, dtype=value.dtype)
    return ((steps - steps.floor()) - 0.5).abs()


def compared(
    found: Tensor,
    wanted: Tensor,
    distance: Tensor | None,
    tolerance: Tolerance | None = None,
    error: float = 0.0,
) -> tuple[int, int, float]:
    """Return how many values differ, how many of these were no ties, and the largest difference.

    Args:
        found: What the runtime gave.
        wanted: What fxquant gave; integers, or floats.
        distance: Of each value before it was rounded from the nearest tie.
        tolerance: What is near and what is equal; None: of float32.
        error: Steps by which the values before rounding may differ anyhow.
    """
    tolerance = tolerance or Tolerance()
    if wanted.is_floating_point():
        relative = _relative(found.double(), wanted.double())
        off = int((relative > tolerance.equal).sum())
        return off, off, float(relative.max()) if relative.numel() else 0.0
    difference = (found.to(torch.int64) - wanted.to(torch.int64)).abs()
    differs = difference > 0
    near = max(error, tolerance.tie * (max(256, int(wanted.max()) - int(wanted.min())) if wanted.numel() else 256))
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
        warn(
            f"{report.runtime}'s kernels differ by more than one step from the file's operators",
            got=listing(coarse),
            hint=OVERFLOWS if report.runtime == OnnxRuntime.name else "",
        )
    return report


def is_coarse(row: OnnxRow) -> bool:
    """Tell whether a kernel for integers is off by more than one step where the operators of the file are not."""
    return bool(row.unrounded) and row.fused_steps > 1
