"""The contestants of ``exports.py``: files of ``fxq.export_onnx`` in a runtime, beside those that the runtime's own
quantizer makes of the same network and data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from kept_files import kept
from peers import Model, Peer
from runtimes import RUNTIMES, onnxruntime_int8
from torch import Tensor, nn

import fxquant as fxq


def planned_for(model: nn.Module, batches: Sequence[Tensor], target: str) -> nn.Module:
    """The model as it is exported to a runtime."""
    prepared = fxq.prepare(model, batches[0], backend=target)
    return fxq.convert(fxq.calibrate(prepared, batches, progress=False), to="reference")


def written_by_fxquant(model: nn.Module, batches: Sequence[Tensor], target: str) -> str:
    """The model, planned for a runtime, as a file whose input ``x`` may have any batch size."""
    name = f"fxquant_{target}.onnx"

    def make(into: Path) -> None:
        shapes = ({0: torch.export.Dim("count", min=1, max=1024)},)
        converted = planned_for(model, batches, target)
        fxq.export_onnx(converted, into / name, batches[0], target=target, input_names=["x"], dynamic_shapes=shapes)

    return str(kept(name, make))


def ours_in_onnxruntime(model: nn.Module, batches: Sequence[Tensor]) -> Model:
    """With the settings of the runtime's own contestant."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    path = written_by_fxquant(model, batches, "onnxruntime")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def ours_in_openvino(model: nn.Module, batches: Sequence[Tensor]) -> Model:
    """With the settings of the runtime's own contestant."""
    import openvino as ov

    core = ov.Core()
    converted = core.read_model(written_by_fxquant(model, batches, "openvino"))
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}

    @functools.cache
    def of_shape(shape: torch.Size) -> Callable[..., Any]:
        fixed = converted.clone()
        fixed.reshape({0: list(shape)})
        return core.compile_model(fixed, "CPU", settings)

    return lambda x: torch.from_numpy(of_shape(x.shape)(x.numpy())[0])


EXPORTED: dict[str, Peer] = {
    "fxquant in ONNX Runtime": ours_in_onnxruntime,
    "ONNX Runtime entropy": functools.partial(onnxruntime_int8, calibrator="Entropy"),
    "ONNX Runtime percentile": functools.partial(onnxruntime_int8, calibrator="Percentile"),
    "fxquant in OpenVINO": ours_in_openvino,
}
"""Beside those of ``RUNTIMES``."""

THEIRS: dict[str, tuple[str, ...]] = {
    "fxquant in ONNX Runtime": ("ONNX Runtime", "ONNX Runtime entropy", "ONNX Runtime percentile"),
    "fxquant in OpenVINO": ("OpenVINO int8",),
}
"""Contestant of ours -> those that the runtime's own quantizer makes."""

TARGETS = {"fxquant in ONNX Runtime": "onnxruntime", "fxquant in OpenVINO": "openvino"}
"""Contestant of ours -> what its file is planned for."""

assert {name for names in THEIRS.values() for name in names} <= {*EXPORTED, *RUNTIMES}
