"""Runs models of ONNX in a runtime, and reads what it made of their nodes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import ExportError
from fxquant.exporting.onnx.extras import onnx, onnxruntime, openvino
from fxquant.exporting.onnx.reasons import computing, is_integer_kernel, why_float
from fxquant.exporting.onnx.units import Unit
from fxquant.graph.failures import first_line

NO_LAYERS = ("Const", "Constant", "Input", "Parameter", "Output", "Result")
"""Types of OpenVINO's layers that are none."""

INTEGER_LAYERS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul", "Eltwise", "Pooling", "Reduce")
"""Those that compute on integers where their precision is one of 8 bits; what else reads integers moves or converts
them."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Holds what a runtime gave, and made of a model."""

    results: list[Tensor]
    kinds: Counter[str]
    """Types of the nodes that it ran."""
    computing: tuple[str, ...]
    """Of these, those that compute; where there are none, those that move values."""
    is_integer: bool
    """Whether one of these computes on integers, or all of them only move integers."""


class OnnxRuntime:
    """ONNX Runtime on the CPU, with one thread."""

    name = "ONNX Runtime"

    def require(self) -> None:
        """Raise an error, which says what to install, where a package is missing."""
        onnxruntime()

    def unfused(self, model: bytes, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Tensor]:
        """Run a model with the runtime's optimizations off."""
        return _run(session(model, optimized=False), names, inputs)

    def fused(self, model: bytes, names: Sequence[str], inputs: Mapping[str, Any]) -> Ran:
        """Run a model as the runtime does by itself."""
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "optimized.onnx"
            results = _run(session(model, optimized=True, save_to=made), names, inputs)
            kinds = operators(made)
        return Ran(results, kinds, computing(tuple(kinds)), is_integer_kernel(kinds))

    def reason(self, unit: Unit, ran: Ran) -> str:
        """Say why no kernel computes a unit on integers."""
        return why_float(unit, ran.kinds)

    def kernels(self, path: Path) -> Counter[str]:
        """Count the types of the nodes that the runtime makes of the whole file."""
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "optimized.onnx"
            session(str(path), optimized=True, save_to=made)
            return operators(made)


class OpenVino(OnnxRuntime):
    """OpenVINO on the CPU, with one thread, and sums in float32. It has no way to run without its optimizations, so
    that ONNX Runtime shows whether the file is right."""

    name = "OpenVINO"

    def require(self) -> None:
        super().require()
        openvino()

    def fused(self, model: bytes, names: Sequence[str], inputs: Mapping[str, Any]) -> Ran:
        compiled = self._compiled(model)
        found = compiled(dict(inputs))
        kinds = layers(compiled)
        results = [torch.as_tensor(found[name]) for name in names]
        return Ran(results, kinds, layers_computing(kinds), layers_on_integers(kinds))

    def reason(self, unit: Unit, ran: Ran) -> str:
        floats = [kind for kind in ran.computing if kind.endswith(" f32")]
        return f"{', '.join(floats or ran.computing)}: no integer kernel"

    def kernels(self, path: Path) -> Counter[str]:
        return layers(self._compiled(str(path)))

    def _compiled(self, model: Any) -> Any:
        core = openvino().Core()
        hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        return core.compile_model(core.read_model(model), "CPU", hints)


RUNTIMES: Mapping[str, OnnxRuntime] = {"onnxruntime": OnnxRuntime(), "openvino": OpenVino()}
"""Where units can be run here, by the names of targets."""


def session(model: Any, *, optimized: bool, save_to: Path | None = None) -> Any:
    """Make a session of ONNX Runtime on the CPU with one thread.

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


def layers(compiled: Any) -> Counter[str]:
    """Count the layers that OpenVINO runs, with the precision of what they read: ``Convolution u8``."""
    kinds: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ordered_ops():
        kind, precision = (node.get_rt_info()[key].astype(str) for key in ("layerType", "runtimePrecision"))
        if kind not in NO_LAYERS:
            kinds[f"{kind} {precision}"] += 1
    return kinds


def layers_computing(kinds: Sequence[str] | Counter[str]) -> tuple[str, ...]:
    """Return those of OpenVINO's layers that compute; where there are none, all."""
    return tuple(kind for kind in kinds if kind.split()[0] in INTEGER_LAYERS) or tuple(kinds)


def layers_on_integers(kinds: Sequence[str] | Counter[str]) -> bool:
    """Tell whether one of OpenVINO's layers computes on integers, or all of them only move integers."""
    found = layers_computing(kinds)
    if any(kind.split()[0] in INTEGER_LAYERS for kind in found):
        return any(kind.endswith((" u8", " i8")) for kind in found)
    return not any(kind.endswith(" f32") for kind in found)


def cannot_run(runtime: str, unit: str, error: Exception) -> ExportError:
    """Return the error for a unit that a runtime refuses."""
    return ExportError(
        f"{runtime} cannot run this unit of the file",
        at=unit,
        got=first_line(error)[:300],
        hint="the file is written; check=False leaves it unread. Models of float32 are what it has kernels for",
    )


def _run(runner: Any, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Tensor]:
    return [torch.as_tensor(array) for array in runner.run(list(names), dict(inputs))]
