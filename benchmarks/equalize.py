"""MobileNetV2 with its real weights, before and after ``equalize``: agreement with float on 156 images, and SQNR.

python benchmarks/equalize.py --bits 6 --scales tensor                     # with 96 crops, some minutes on one core
python benchmarks/equalize.py --bits 6 --scales tensor --iterations 100    # then ``reconstruct`` learns, minutes more
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from real_classifiers import mobilenet_v2_task
from real_task import outputs
from tabulate import tabulate

import fxquant as fxq
from fxquant.demo.measure import machine

ACTIVATION, LOGITS = (each.with_args(dtype=torch.uint8) for each in (fxq.HistogramObserver, fxq.MinMaxObserver))
WEIGHTS = {
    "tensor": fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"),
    "channel": fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=6)
    parser.add_argument("--scales", choices=WEIGHTS, default="tensor")
    parser.add_argument("--crops", type=int, default=96)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--iterations", type=int, default=0, help="of reconstruct, after equalize; 0: none")
    parser.add_argument("--batch", type=int, default=16, help="of reconstruct")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    task = mobilenet_v2_task()
    crops = list(torch.cat(list(task.calibration))[: options.crops].split(8))
    qconfig = fxq.QConfig(
        activation=ACTIVATION,
        weight=WEIGHTS[options.scales].with_args(bits=options.bits),
        output=LOGITS,
        correct_bias=True,
    )
    prepared = fxq.prepare(task.model, crops[0], qconfig)
    start = time.perf_counter()
    equalized = fxq.equalize(prepared, crops, method=options.method, progress=False)
    seconds = time.perf_counter() - start
    print(equalized.equalization)
    models = {
        "as it is": fxq.calibrate(prepared, crops, progress=False),
        "equalized": fxq.calibrate(equalized, crops, progress=False),
    }
    learning = 0.0
    if options.iterations:
        start = time.perf_counter()
        models["equalized, then learned"] = fxq.reconstruct(
            models["equalized"], crops, iterations=options.iterations, batch=options.batch
        )
        learning = time.perf_counter() - start
    rows = []
    with torch.no_grad():
        expected = outputs(task.model, task.batches)
        for name, model in models.items():
            given = outputs(fxq.convert(model), task.batches)
            same = (given.argmax(1) == expected.argmax(1)).float().mean()
            noise = 10 * torch.log10(expected.square().sum() / (given - expected).square().sum())
            half = 1.96 * float((same * (1 - same) / len(given)).sqrt())
            rows.append((name, f"{task.score(given):.0f}", f"{same:.3f} ± {half:.3f}", f"{noise:.2f}"))
    print(tabulate(rows, headers=("", task.metric, "agreement", "SQNR, dB"), disable_numparse=True))
    if options.json is not None:
        head = ("model", task.metric, "agreement", "SQNR, dB")
        about = {"bits": options.bits, "scales": options.scales, "crops": options.crops, "seconds": round(seconds)}
        about |= {"iterations": options.iterations, "seconds of learning": round(learning)}
        found = {**about, "machine": machine(), "rows": [dict(zip(head, row, strict=True)) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"W{options.bits}A8, one scale per {options.scales}, {options.crops} crops; equalize took {seconds:.0f} s")


if __name__ == "__main__":
    main()
