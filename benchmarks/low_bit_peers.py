"""MobileNetV2 with its real weights, quantized by fxquant and by other tools on the same crops, in one table.

pip install --target DIR --no-deps nncf==3.4.0 aimet-torch==2.42.0 mqbench-torch2==0.1.1    # and what these import
PYTHONPATH=DIR python benchmarks/low_bit_peers.py --output out/low_bit_peers.json
Every tool gives a simulation in float, on 156 images that nothing was chosen by; a tool that is not installed, or that
fails, is a row with the error. Settings are each tool's own defaults for 8 bits, but for what a row names.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from real_classifiers import mobilenet_v2_task
from real_task import outputs
from search_precision import compared
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq

Model = Callable[[Tensor], Tensor]
PER_TENSOR = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")


def fxquant(mapping: Callable[[], Any], method: str = "") -> Any:
    """fxquant with a configuration, and with one of its methods."""

    def build(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
        prepared = fxq.prepare(model, crops[0], mapping())
        if method == "equalize":
            prepared = fxq.equalize(prepared, crops, progress=False)
        fxq.calibrate(prepared, crops, progress=False)
        if method == "reconstruct":
            prepared = fxq.reconstruct(prepared, crops, iterations=steps, batch=8, progress=False)
        elif method in ("correct_statistics", "gptq"):
            prepared = getattr(fxq, method)(prepared, crops, progress=False)
        return fxq.convert(prepared, to="fake_quant")

    return build


def bits(weight: int) -> Callable[[], fxq.QConfigMapping]:
    return lambda: fxq.low_bit_qconfig(weight, 8, ends=None)


def of_one_scale() -> fxq.QConfigMapping:
    mapping = fxq.get_default_qconfig_mapping()
    assert mapping.global_qconfig is not None
    return mapping.set_global(replace(mapping.global_qconfig, weight=PER_TENSOR))


def nncf(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
    import nncf

    return nncf.quantize(copy.deepcopy(model), nncf.Dataset(crops), subset_size=len(crops)).eval()


def nncf_with_accuracy(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
    """NNCF's accuracy-aware mode, on an OpenVINO model: the agreement on the crops falls by a point at most."""
    import nncf
    import numpy as np
    import openvino as ov

    float_model = ov.convert_model(copy.deepcopy(model).eval(), example_input=crops[0])
    float_model.outputs[0].get_tensor().set_names({"logits"})  # NNCF collects outputs by name, and finds none without
    data = nncf.Dataset(crops, lambda batch: batch.numpy())
    with torch.no_grad():
        expected = torch.cat([model(batch).argmax(1) for batch in crops]).numpy()

    def agreement(compiled: Any, batches: Iterable[Any]) -> tuple[float, None]:
        given = np.concatenate([next(iter(compiled(batch).values())).argmax(1) for batch in batches])
        return float((given == expected).mean()), None

    quantized = nncf.quantize_with_accuracy_control(
        float_model, data, data, agreement, max_drop=0.01, subset_size=len(crops)
    )
    compiled = ov.Core().compile_model(quantized, "CPU", {"INFERENCE_NUM_THREADS": 1})
    return lambda x: torch.from_numpy(next(iter(compiled(x.numpy()).values())).copy())


def torchao(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    exported = torch.export.export(model, (crops[0],), dynamic_shapes=shapes).module(check_guards=False)
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    run(prepared, crops)
    return move_exported_model_to_eval(convert_pt2e(prepared))


def aimet(weight_bits: int, *, equalized: bool) -> Any:
    """AIMET's simulation; ``equalized`` is its cross-layer equalization, for which it folds batch norms first."""

    def build(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
        from aimet_torch import QuantizationSimModel
        from aimet_torch.batch_norm_fold import fold_all_batch_norms
        from aimet_torch.cross_layer_equalization import equalize_model

        changed, shape = copy.deepcopy(model), tuple(crops[0].shape)
        if equalized:
            equalize_model(changed, shape)
        else:
            fold_all_batch_norms(changed, shape)
        sim = QuantizationSimModel(changed, crops[0], default_param_bw=weight_bits, default_output_bw=8)
        sim.compute_encodings(lambda simulated: run(simulated, crops))
        return sim.model.eval()

    return build


def aimet_adaround(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
    """AIMET's AdaRound of 4-bit weights, and activations of 8 bits."""
    from aimet_torch import QuantizationSimModel
    from aimet_torch.adaround.adaround_weight import Adaround, AdaroundParameters
    from aimet_torch.batch_norm_fold import fold_all_batch_norms

    changed = copy.deepcopy(model)
    fold_all_batch_norms(changed, tuple(crops[0].shape))
    forward = AdaroundParameters(
        crops, len(crops), default_num_iterations=steps, forward_fn=lambda simulated, batch: simulated(batch)
    )
    with tempfile.TemporaryDirectory() as folder:
        rounded = Adaround.apply_adaround(changed, crops[0], forward, folder, "rounded", default_param_bw=4)
        sim = QuantizationSimModel(rounded, crops[0], default_param_bw=4, default_output_bw=8)
        sim.set_and_freeze_param_encodings(f"{folder}/rounded.encodings")
    sim.compute_encodings(lambda simulated: run(simulated, crops))
    return sim.model.eval()


def mqbench(weight_bits: int = 8, pattern: str = "") -> Any:
    """MQBench's simulation; with a pattern, ``"layer"`` or ``"block"``, weights are reconstructed as in AdaRound or
    BRECQ."""

    def build(model: nn.Module, crops: list[Tensor], steps: int) -> Model:
        from mqbench.advanced_ptq import ptq_reconstruction
        from mqbench.prepare_by_platform import BackendType, prepare_by_platform
        from mqbench.utils.state import enable_calibration, enable_quantization

        config = {**MQ, "w_qscheme": {**MQ["w_qscheme"], "bit": weight_bits}}
        if pattern:
            config |= {"w_observer": "MSEObserver", "w_fakequantize": "AdaRoundFakeQuantize"}
        prepared = prepare_by_platform(
            copy.deepcopy(model).eval(), BackendType.Academic, {"extra_qconfig_dict": config}
        )
        enable_calibration(prepared)
        run(prepared, crops)
        if pattern:
            enable_quantization(prepared)
            settings = Settings(LEARNING, pattern=pattern, max_count=steps)
            prepared = ptq_reconstruction(prepared, crops, settings)
        enable_quantization(prepared)
        return prepared.eval()

    return build


class Settings(dict[str, Any]):
    """Settings that MQBench reads as attributes."""

    __getattr__ = dict.__getitem__


LEARNING = {
    "scale_lr": 4e-5,
    "warm_up": 0.2,
    "weight": 0.01,
    "b_range": [20, 2],
    "keep_gpu": False,
    "round_mode": "learned_hard_sigmoid",
    "prob": 1.0,
}
"""Of its documentation, without the dropping of QDrop."""


MQ: dict[str, Any] = {
    "w_observer": "MinMaxObserver",
    "a_observer": "EMAMinMaxObserver",
    "w_fakequantize": "FixedFakeQuantize",
    "a_fakequantize": "FixedFakeQuantize",
    "w_qscheme": {"bit": 8, "symmetry": True, "per_channel": True, "pot_scale": False},
    "a_qscheme": {"bit": 8, "symmetry": False, "per_channel": False, "pot_scale": False},
}


def run(model: Model, batches: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for batch in batches:
            model(batch)


TOOLS: dict[str, Any] = {
    "fxquant W8A8 per channel": fxquant(fxq.get_default_qconfig_mapping),
    "fxquant W8A8 per channel, correct_statistics": fxquant(fxq.get_default_qconfig_mapping, "correct_statistics"),
    "fxquant W8A8 per tensor": fxquant(of_one_scale),
    "fxquant W8A8 per tensor, equalize": fxquant(of_one_scale, "equalize"),
    "fxquant W8A8 per tensor, correct_statistics": fxquant(of_one_scale, "correct_statistics"),
    "fxquant W4A8": fxquant(bits(4)),
    "fxquant W4A8, correct_statistics": fxquant(bits(4), "correct_statistics"),
    "fxquant W4A8, gptq": fxquant(bits(4), "gptq"),
    "fxquant W4A8, reconstruct": fxquant(bits(4), "reconstruct"),
    "NNCF W8A8": nncf,
    "NNCF accuracy-aware": nncf_with_accuracy,
    "torchao pt2e x86 W8A8": torchao,
    "AIMET W8A8": aimet(8, equalized=False),
    "AIMET W8A8, equalized": aimet(8, equalized=True),
    "AIMET W4A8": aimet(4, equalized=False),
    "AIMET AdaRound W4A8": aimet_adaround,
    "MQBench W8A8 per channel": mqbench(),
    "MQBench BRECQ W4A8": mqbench(4, "block"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="*", help="words that names of rows begin with; without it, all")
    parser.add_argument("--crops", type=int, default=48)
    parser.add_argument("--steps", type=int, default=40, help="for each block or layer that learns")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    task = mobilenet_v2_task()
    crops = list(torch.cat(list(task.calibration))[: options.crops].split(8))
    with torch.no_grad():
        expected = outputs(task.model, task.batches)
    rows: list[dict[str, Any]] = [{"tool": "float", task.metric: task.score(expected)}]
    for name, build in TOOLS.items():
        if options.tools and not name.startswith(tuple(options.tools)):
            continue
        start = time.perf_counter()
        try:
            model = build(task.model, crops, options.steps)
            seconds = time.perf_counter() - start
            with torch.no_grad():
                given = outputs(model, task.batches).detach()
            rows.append({"tool": name, **compared(given, expected), task.metric: task.score(given), "s": seconds})
        except Exception as error:  # another tool may raise anything; the row says what
            rows.append({"tool": name, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})
        print(rows[-1], flush=True)
        if options.output is not None:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(tabulate(rows, headers="keys", floatfmt=".3f"))


if __name__ == "__main__":
    main()
