"""What ``correct_statistics`` and ``reestimate_batch_norm`` gain: a small residual net on Fashion-MNIST.

python benchmarks/channel_statistics.py --weights fashion.pt --json results.json    # some minutes on one core
Weights as those of ``reconstruct.py --net fashion``, which trains them where the file is missing. Right answers of the
10,000 test pictures; intervals are of 95 %.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from real_task import Task, outputs
from reconstruct import fashion
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.samples.fashion import fashion_mnist

ACTIVATION = fxq.HistogramObserver.with_args(dtype=torch.uint8)
CHANNEL = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0)
TENSOR = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
WEIGHTS = {
    "W4A8 per tensor": TENSOR.with_args(bits=4),
    "W4A8 per channel": CHANNEL.with_args(bits=4),
    "W3A8 per channel": CHANNEL.with_args(bits=3),
}


def row_of(task: Task, name: str, method: str, model: nn.Module, expected: Tensor, seconds: float) -> dict[str, Any]:
    """One row: right answers with half the width of their interval, and SQNR against ``expected``."""
    with torch.no_grad():
        given = outputs(model, task.batches)
    right = task.score(given)
    sqnr = 10 * math.log10(float(expected.square().sum() / (given - expected).square().sum()))
    half = 196 * math.sqrt(right / 100 * (1 - right / 100) / len(given))
    row = {"setting": name, "method": method, task.metric: round(right, 2), "±": round(half, 2)}
    return {**row, "SQNR, dB": round(sqnr, 2), "seconds": round(seconds, 1)}


def corrected(task: Task, expected: Tensor) -> list[dict[str, Any]]:
    """Weights rounded to nearest: as they are, with corrected means, and with corrected means and variances."""
    rows = []
    for name, weight in WEIGHTS.items():
        for method in ("nearest", "correct_bias", "correct_statistics"):
            qconfig = fxq.QConfig(activation=ACTIVATION, weight=weight, correct_bias=method == "correct_bias")
            prepared = fxq.prepare(task.model, task.calibration[0], qconfig)
            fxq.calibrate(prepared, task.calibration, progress=False)
            start = time.perf_counter()
            if method == "correct_statistics":
                prepared = fxq.correct_statistics(prepared, task.calibration, progress=False)
            seconds = time.perf_counter() - start
            model = fxq.convert(prepared, to="fake_quant")
            rows.append(row_of(task, name, method, model, expected, seconds))
            print(rows[-1], flush=True)
    return rows


def trained(task: Task, bits: int, rate: float, steps: int, batch: int = 128) -> nn.Module:
    """Return the network after training with few bits; the pictures of the training set, in one random order."""
    images, labels = fashion_mnist("train")
    activation, weight = fxq.MovingAverageMinMaxObserver.with_args(bits=bits, dtype=torch.uint8), CHANNEL
    qconfig = fxq.QConfig(activation=activation, weight=weight.with_args(bits=bits))
    qat = fxq.prepare_qat(task.model, images[:batch], qconfig).train()
    optimizer = torch.optim.SGD(qat.parameters(), rate, momentum=0.9)
    for picked in torch.randperm(len(images))[: steps * batch].split(batch):
        optimizer.zero_grad()
        cross_entropy(qat(images[picked]), labels[picked]).backward()
        optimizer.step()
    return qat.apply(fxq.disable_observer).eval()


def reestimated(task: Task, expected: Tensor, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Training with few bits: with the running statistics of training, and with those of the trained network."""
    rows = []
    images, _ = fashion_mnist("train")
    data = images[: options.batches * 128].split(128)
    for bits in options.bits:
        name = f"W{bits}A{bits} trained"
        qat = trained(task, bits, options.rate, options.steps)
        rows.append(row_of(task, name, "as trained", fxq.convert(qat, to="fake_quant"), expected, 0.0))
        start = time.perf_counter()
        fxq.reestimate_batch_norm(qat, data, num_batches=options.batches, progress=False)
        seconds = time.perf_counter() - start
        rows.append(row_of(task, name, "reestimate_batch_norm", fxq.convert(qat, to="fake_quant"), expected, seconds))
        print(*rows[-2:], sep="\n", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="of the net; where there are none, to write to")
    parser.add_argument("--pictures", type=int, default=1024, help="to calibrate and correct by")
    parser.add_argument("--images", type=int, default=10_000, help="of the test")
    parser.add_argument("--epochs", type=int, default=6, help="of the net, where it is trained here")
    parser.add_argument("--bits", type=int, nargs="*", default=[4, 3], help="of training with few bits")
    parser.add_argument("--steps", type=int, default=200, help="of training with few bits")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--batches", type=int, default=100, help="of 128 pictures, for batch norms")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    torch.manual_seed(0)
    task, _ = fashion(options)
    with torch.no_grad():
        expected = outputs(task.model, task.batches)
    rows = corrected(task, expected) + reestimated(task, expected, options)
    print(tabulate(rows, headers="keys"))
    if options.json is not None:
        data = {"task": task.name, "float": task.score(expected), "machine": machine()}
        options.json.write_text(json.dumps({**data, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
