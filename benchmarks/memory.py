"""Resident memory of a network, float against int8: what a loaded model adds, and its peaks.

Each in a fresh process that loads a saved model and calls it three times with one picture; that is what *while loading*
means. The other peak is that of the calls after these. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches

_MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="name of torchvision.models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    calibration = calibration_batches(batch_size=8, num_batches=2)
    model = random_network(options.model, calibration)
    prepared = fxq.prepare(model, calibration[0])
    int8 = fxq.convert(fxq.calibrate(prepared, calibration, progress=False))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, saved in {"float": model, "int8": int8}.items():
            path = Path(folder, f"{name}.pt")
            torch.save(saved, path)
            results[name] = in_fresh_process(measure, str(path), calibration[0][:1], options.threads)
            results[name]["MB of the file"] = path.stat().st_size / _MB
    shares = {key: results["float"][key] / results["int8"][key] for key in results["float"]}
    rows = [{options.model: name} | row for name, row in (results | {"float / int8": shares}).items()]
    print(tabulate(rows, headers="keys", floatfmt=".2f"))
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(path: str, x: torch.Tensor, threads: int) -> dict[str, float]:
    """Megabytes of one model, in a process that has done nothing yet."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        nn.Conv2d(3, 8, 3)(x)  # the framework's threads and libraries are not the model's
        gc.collect()
        before = resident()["VmRSS"]
        model = torch.load(path, weights_only=False)
        for _ in range(3):
            model(x)
        gc.collect()
        loaded = resident()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew: what loading took does not count
        for _ in range(3):
            model(x)
        peak = resident()["VmHWM"]
    return {
        "MB added": (loaded["VmRSS"] - before) / _MB,
        "MB at the peak": (peak - before) / _MB,
        "MB while loading": (loaded["VmHWM"] - before) / _MB,
    }


def resident() -> dict[str, int]:
    """Bytes of memory of this process now (``VmRSS``), and at most (``VmHWM``)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Vm"))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, *_ in lines}


if __name__ == "__main__":
    main()
