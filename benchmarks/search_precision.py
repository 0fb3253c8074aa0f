"""MobileNetV2 with its real weights: what ``search_precision`` finds for some budgets, and agreement on 156 images.

python benchmarks/search_precision.py --size 0.5 0.55 0.6 --output out/search_precision.json
python benchmarks/search_precision.py --candidates W4A4 W4A8 --bitops 0.35     # which results need 8 bits
python benchmarks/search_precision.py --candidates W4A4 W4A8 W8A8 --backend reference \
    --budget size=0.685,activations=0.615 --iterations 120 --calibration 96    # then ``reconstruct`` learns
The noise of choices is measured once for all budgets, into ``--checkpoint``: half an hour on one busy core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from real_classifiers import mobilenet_v2_task
from real_task import Task, outputs
from tabulate import tabulate
from torch import Tensor

import fxquant as fxq
from fxquant.measure.paired import paired_difference

ACTIVATION, LOGITS = (each.with_args(dtype=torch.uint8) for each in (fxq.HistogramObserver, fxq.MinMaxObserver))
WEIGHT = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0)
QCONFIG = fxq.QConfig(activation=ACTIVATION, weight=WEIGHT, output=LOGITS, correct_bias=True)


def compared(given: Tensor, expected: Tensor) -> dict[str, Any]:
    """Agreement with the float model, with its 95 % interval, and SQNR in dB."""
    same = (given.argmax(1) == expected.argmax(1)).double().tolist()
    share = paired_difference(same, [0.0] * len(same))
    noise = 10 * torch.log10(expected.square().sum() / (given - expected).square().sum())
    return {"agreement": share.difference, "interval": [share.low, share.high], "sqnr": float(noise)}


def calibrated(task: Task, crops: list[Tensor], mapping: Any, backend: str) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(task.model, crops[0], mapping, backend=backend), crops, progress=False)


def measured(task: Task, prepared: fxq.Quantizer) -> dict[str, Any]:
    """What a model gives on the images that nothing was chosen by."""
    with torch.no_grad():
        given = outputs(fxq.convert(prepared, to="fake_quant"), task.batches)
        return {task.metric: task.score(given), **compared(given, outputs(task.model, task.batches))}


def budgets_of(options: argparse.Namespace) -> dict[str, fxq.Budget]:
    """The budgets of the command line, by what the table calls them."""
    parts = [f"size={x}" for x in options.size] + [f"bitops={x}" for x in options.bitops] + options.budget
    return {
        text: fxq.Budget(**{name: float(part) for name, _, part in (each.partition("=") for each in text.split(","))})
        for text in parts
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, nargs="*", default=[])
    parser.add_argument("--bitops", type=float, nargs="*", default=[])
    parser.add_argument("--budget", nargs="*", default=[], help="several parts at once: size=0.6,activations=0.7")
    parser.add_argument("--candidates", nargs="+", default=["W2A8", "W4A8", "W8A8"])
    parser.add_argument("--calibration", type=int, default=48)
    parser.add_argument("--crops", type=int, default=16, help="of the calibration data, that noise is measured on")
    parser.add_argument("--estimate", default="alone")
    parser.add_argument("--backend", default="cpu", help="reference counts activations of 4 bits as half a byte")
    parser.add_argument("--iterations", type=int, default=0, help="of reconstruct, on what was found; 0: none")
    parser.add_argument("--batch", type=int, default=16, help="of reconstruct")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    task = mobilenet_v2_task()
    crops = list(torch.cat(list(task.calibration))[: options.calibration].split(8))
    prepared = calibrated(task, crops, QCONFIG, options.backend)
    rows = [{"budget": "all W8A8", "size": 1.0, "bitops": 1.0, "activations": 1.0, **measured(task, prepared)}]
    with tempfile.TemporaryDirectory() as folder:
        for text, budget in budgets_of(options).items():
            start = time.perf_counter()
            found = fxq.search_precision(
                prepared,
                crops[: options.crops // 8],
                budget=budget,
                candidates=options.candidates,
                estimate=options.estimate,
                checkpoint=options.checkpoint or Path(folder) / "run",
            )
            seconds = time.perf_counter() - start
            print(found, flush=True)
            cost, whole = found.point.cost, found.all_at_8
            row = {name: cost.of(name) / whole.of(name) for name in ("size", "bitops", "activations")}
            mixed = calibrated(task, crops, found.mapping(), options.backend)
            rows.append(
                {
                    "budget": text,
                    **row,
                    "predicted": found.predicted,
                    "measured_on_crops": found.measured,
                    "seconds": seconds,
                    **measured(task, mixed),
                    "choices": {row.name: row.choice for row in found},
                }
            )
            if options.iterations:
                start = time.perf_counter()
                learned = fxq.reconstruct(mixed, crops, iterations=options.iterations, batch=options.batch)
                print(learned.reconstruction, flush=True)
                seconds = time.perf_counter() - start
                rows.append({"budget": f"{text}, learned", **row, "seconds": seconds, **measured(task, learned)})
            if options.output:
                options.output.parent.mkdir(parents=True, exist_ok=True)
                options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = [
        (
            row["budget"],
            f"{row['size']:.3f}",
            f"{row['bitops']:.3f}",
            f"{row['activations']:.3f}",
            f"{row[task.metric]:.0f}",
            f"{row['agreement']:.3f} ({row['interval'][0]:.3f} to {row['interval'][1]:.3f})",
            f"{row['sqnr']:.2f}",
            f"{row.get('seconds', 0):.0f}",
        )
        for row in rows
    ]
    head = ("budget", "size", "bitops", "activations", task.metric, "agreement", "SQNR, dB", "seconds")
    print(tabulate(table, headers=head, disable_numparse=True))


if __name__ == "__main__":
    main()
