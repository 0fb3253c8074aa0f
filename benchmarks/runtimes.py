"""The contestants of ``int8.py`` that other runtimes or compilers run. Each has a process of its own, so that what it
sets globally, and the threads it keeps, meet nobody else.

``pip install onnx onnxscript onnxruntime openvino nncf torchao`` brings what they need (the extra ``peers``).
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from kept_files import kept
from peers import Model, Peer
from torch import Tensor, nn


def compiled(model: nn.Module, batches: Sequence[Tensor]) -> Model:
    """The float model by torch.compile, with weights folded in."""
    return _frozen(model)


def pt2e(model: nn.Module, batches: Sequence[Tensor]) -> Model:
    """torchao's export mode with the quantizer for x86, compiled with weights folded in."""
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    @functools.cache
    def of_shape(shape: torch.Size) -> Model:
        # Exported for one shape: with a dynamic batch the compiled code is slower.
        exported = torch.export.export(model, (torch.zeros(shape),), strict=True).module()
        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(exported, quantizer)
        images = torch.cat(list(batches))
        for first in range(0, len(images), shape[0]):  # the last batch begins again, since all have one size
            prepared(images[torch.arange(first, first + shape[0]) % len(images)])
        return _frozen(move_exported_model_to_eval(convert_pt2e(prepared)))

    return lambda x: of_shape(x.shape)(x)


def onnxruntime_int8(model: nn.Module, batches: Sequence[Tensor], calibrator: str = "MinMax") -> Model:
    """ONNX Runtime: static, per channel, min-max, as its documentation recommends for CPUs with VNNI."""
    import onnxruntime as ort
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter(batches)

        def get_next(self) -> Any:
            batch = next(self._batches, None)
            return None if batch is None else {"x": batch.numpy()}

    name = f"onnxruntime_{calibrator.lower()}.onnx"

    def make(into: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            made, prepared = _onnx_file(model, batches[0], folder), str(Path(folder, "prepared.onnx"))
            quant_pre_process(made, prepared)
            quantize_static(
                prepared,
                str(into / name),
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod[calibrator],
            )

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = ort.InferenceSession(str(kept(name, make)), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def openvino(*, int8: bool) -> Peer:
    """OpenVINO in its default precision: the float model (bf16 where the CPU has it), or int8 made by NNCF."""

    def build(model: nn.Module, batches: Sequence[Tensor]) -> Model:
        import openvino as ov

        name = "openvino_int8.xml" if int8 else "openvino_float.xml"

        def make(into: Path) -> None:
            with tempfile.TemporaryDirectory() as folder:
                converted = ov.convert_model(_onnx_file(model, batches[0], folder))
            if int8:
                converted = _quantized_by_nncf(converted, model, batches)
            ov.save_model(converted, into / name, compress_to_fp16=False)

        core = ov.Core()
        converted = core.read_model(kept(name, make))
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}

        @functools.cache
        def of_shape(shape: torch.Size) -> Callable[..., Any]:
            fixed = converted.clone()
            fixed.reshape({0: list(shape)})
            return core.compile_model(fixed, "CPU", settings)

        return lambda x: torch.from_numpy(of_shape(x.shape)(x.numpy())[0])

    return build


def _quantized_by_nncf(converted: Any, model: nn.Module, batches: Sequence[Tensor]) -> Any:
    import nncf

    transformer = any(isinstance(module, nn.LayerNorm) for module in model.modules())
    return nncf.quantize(
        converted,
        nncf.Dataset(batches, lambda batch: batch.numpy()),
        subset_size=len(batches),
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
    )


RUNTIMES: dict[str, Peer] = {
    "fp32 compiled": compiled,
    "PT2E": pt2e,
    "ONNX Runtime": onnxruntime_int8,
    "OpenVINO int8": openvino(int8=True),
    "OpenVINO float": openvino(int8=False),
}


def versions() -> Iterator[tuple[str, str]]:
    """Name and version of what is installed of them."""
    from importlib import metadata

    for name in ("onnxruntime", "openvino", "nncf", "torchao"):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"


def _frozen(model: Callable[..., Any]) -> Model:
    import torch._inductor.config as inductor

    inductor.freezing = True  # the option of torch.compile does not reach the pass that packs int8 weights
    compiled = torch.compile(model, dynamic=False)
    return lambda x: compiled(x)


def _onnx_file(model: nn.Module, batch: Tensor, folder: str) -> str:
    """The model as an ONNX file whose input ``x`` may have any batch size."""
    path = str(Path(folder, "float.onnx"))
    count = torch.export.Dim("count", min=1, max=1024)
    torch.onnx.export(
        model, (batch,), path, input_names=["x"], dynamic_shapes=({0: count},), dynamo=True, verbose=False
    )
    return path
