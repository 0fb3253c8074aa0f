"""MobileNetV2 with its ImageNet weights as an ONNX file: how many of 156 answers differ from int8's, and why.

A file is right if each unit gives the same integers on the same inputs, but for ties; that is what the last lines
count. Whole models differ more: the row "one input a step off" is int8 itself, with one value of each image one step
of the input's quantization range away. Answers that differ are listed with the float margin: the probability of
float's first class less that of its second. Needs ``pip install 'fxquant[onnx]' openvino``.

python benchmarks/exported_answers.py
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from real_classifiers import mobilenet_v2_task
from real_task import Task, outputs
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.exporting.onnx.runtimes import session
from fxquant.measure.noise import sqnr

PLACES = ((60, 60), (112, 112))
"""Row and column of the values that are moved, in the second channel."""
SMALL = 0.01
"""A float margin below this says that the answer was open."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batches", type=int, default=6, help="of 26 images")
    options.add_argument("--save", help="write the outputs to this file")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    task = mobilenet_v2_task()
    batches = task.batches[: chosen.batches]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        found = dict(contestants(task, batches, Path(folder)))
    if chosen.save:
        torch.save(found, chosen.save)
    show(found)


def contestants(task: Task, batches: Sequence[Tensor], folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Logits, [images, 1000], by who gave them: float first, then int8."""
    yield "float", outputs(task.model, batches)
    cpu = planned(task, "cpu")
    int8 = fxq.convert(cpu, to="int8")
    yield "int8", outputs(int8, batches)
    step = next(float(row.qparams.scale) for row in fxq.qparams(cpu).rows if row.kind == "activation")
    for place in PLACES:
        yield f"int8, input {place} a step off", outputs(int8, [moved(each, place, step) for each in batches])
    yield "reference", outputs(fxq.convert(cpu, to="reference"), batches)
    for target in ("onnxruntime", "openvino"):
        converted = fxq.convert(planned(task, target), to="reference")
        yield f"reference, planned for {target}", outputs(converted, batches)
        for name, runs in files(converted, target, batches[0], folder):
            yield name, outputs(runs, batches)


def planned(task: Task, backend: str) -> fxq.Quantizer:
    prepared = fxq.prepare(task.model, task.calibration[0][:2], backend=backend)
    return fxq.calibrate(prepared, task.calibration, progress=False)


def moved(images: Tensor, place: tuple[int, int], step: float) -> Tensor:
    """Images of which one value lies a step nearer to 0, or to -1 where it is 0: inside the calibrated range."""
    result = images.clone()
    row, column = place
    values = result[:, 1, row, column]
    result[:, 1, row, column] = torch.where(values > 0, values - step, values + step)
    return result


def files(
    converted: nn.Module, target: str, batch: Tensor, folder: Path
) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """The file in its runtime. What its units give on the same inputs is printed."""
    path = folder / f"{target}.onnx"
    shapes = ({0: torch.export.Dim("count", min=1, max=1024)},)
    names = {"input_names": ["x"], "dynamic_shapes": shapes}
    report = fxq.export_onnx(converted, path, batch[:2], target=target, check=target, **names)
    values = sum(row.values for row in report.rows)
    print(
        f"{target}: {len(report.rows)} units, {values:,} values on the same inputs. Without optimizations"
        f" {sum(row.unfused_different for row in report.rows):,} differ,"
        f" {sum(row.unfused_beyond_ties for row in report.rows):,} of them away from ties; with them"
        f" {sum(row.fused_different for row in report.rows):,}, by at most"
        f" {max(row.fused_steps for row in report.rows if row.unrounded):g} steps.",
        flush=True,
    )
    if target == "openvino":
        import openvino

        hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = openvino.Core().compile_model(str(path), "CPU", hints)
        yield "file in OpenVINO", lambda x: torch.from_numpy(compiled(x.numpy())[0])
        return
    for optimized in (False, True):
        runner = session(str(path), optimized=optimized)
        words = "" if optimized else ", optimizations off"
        yield (
            f"file in ONNX Runtime{words}",
            lambda x, runner=runner: torch.from_numpy(runner.run(None, {"x": x.numpy()})[0]),
        )


def show(found: Mapping[str, Tensor]) -> None:
    """Print the table, and each image on which a file and int8 answer differently."""
    exact, int8 = found["float"], found["int8"]
    answers = {name: logits.argmax(1) for name, logits in found.items()}
    best = exact.softmax(1).topk(2).values
    margins = best[:, 0] - best[:, 1]
    rows = []
    for name, logits in found.items():
        differs = answers[name] != answers["int8"]
        rows.append(
            {
                "": name,
                "not as float": int((answers[name] != answers["float"]).sum()),
                "dB to float": sqnr(exact, logits),
                "not as int8": int(differs.sum()),
                "of margin < 1 %": int((differs & (margins < SMALL)).sum()),
                "largest margin": f"{100 * float(margins[differs].max()) if differs.any() else 0:.1f} %",
                "dB to int8": sqnr(int8, logits),
            }
        )
    print(tabulate(rows, headers="keys", floatfmt=".1f"), end="\n\n")
    names = [name for name in found if name not in ("float", "int8")]
    listed = []
    for index in range(len(exact)):
        others = [name for name in names if answers[name][index] != answers["int8"][index]]
        if others:
            row = {"image": index, "margin": f"{100 * float(margins[index]):.2f} %"}
            row |= {name: int(answers[name][index]) for name in ("float", "int8")}
            listed.append(row | {"others": ", ".join(f"{name}: {int(answers[name][index])}" for name in others)})
    print(tabulate(listed, headers="keys"))


if __name__ == "__main__":
    main()
