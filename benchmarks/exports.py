"""Files of ``fxq.export_onnx`` in ONNX Runtime and OpenVINO, beside those of the runtimes' own quantizers.

Same networks, calibration and turns as ``int8.py``. A ratio above 1 says that ours is faster; SQNR against float is
measured on photographs that were not calibrated on, and theirs is that of the best of their calibrators. Needs
``pip install onnx onnxscript onnxruntime openvino nncf``; what is missing costs its column. The machine must be quiet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from exported import THEIRS
from int8 import MODELS
from runtimes import versions
from tabulate import tabulate
from turns import compete, median_ms

from fxquant.demo.measure import machine
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch

MORE = ("mobilenet_v3_small",)
LEAST_MEAN, LEAST = 0.97, 0.9
"""What the geometric mean of all ratios, and each, is to reach."""
MOST_LOST = 0.5
"""dB that ours may lie below theirs."""


def main() -> None:
    options = arguments()
    about = {"machine": machine() | dict(versions()), "rounds": options.rounds}
    print("\n".join(f"{key}: {value}" for key, value in about["machine"].items()), flush=True)
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        start = time.perf_counter()
        rows += measure(name, options)
        if options.json:  # after each network: a run that is cut short has not measured in vain
            Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(tabulate([line(row) for row in rows], headers="keys", floatfmt=".2f"), end="\n\n")
    print(tabulate(summary(rows), headers="keys", floatfmt=".2f"))


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per runtime: milliseconds and SQNR of ours and of theirs."""
    calibration = calibration_batches(batch_size=8, num_batches=2 if options.quick else 4)
    images, _ = labelled_batch()
    model = random_network(name, calibration)
    wanted = [runtime for runtime in THEIRS if runtime in options.runtimes]
    names = [each for runtime in wanted for each in (runtime, *THEIRS[runtime])]
    contestants, outputs = compete(
        names, model, calibration, {options.batch: images[: options.batch].contiguous()}, images, options.rounds
    )
    with torch.no_grad():
        exact = model(images)
    ms = {each.name: median_ms(each, options.batch) for each in contestants}
    noise = {peer: sqnr(exact, output) for peer, output in outputs.items()}
    failures = {each.name: each.failure for each in contestants if each.failure}
    return [
        {
            "model": name,
            "runtime": runtime,
            "ms": {each: ms[each] for each in (runtime, *THEIRS[runtime])},
            "sqnr": {each: noise[each] for each in (runtime, *THEIRS[runtime]) if each in noise},
            "failures": {each: failures[each] for each in (runtime, *THEIRS[runtime]) if each in failures},
        }
        for runtime in wanted
    ]


def line(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    runtime = row["runtime"]
    return {
        "model": row["model"],
        "": runtime,
        "ms": row["ms"][runtime],
        "theirs": row["ms"][THEIRS[runtime][0]],
        "ratio": ratio(row),
        "dB": row["sqnr"].get(runtime, float("nan")),
        "best of theirs": best_of_theirs(row),
    }


def ratio(row: dict[str, Any]) -> float:
    """How many times as fast ours is; theirs are as fast as each other, whatever calibrated them."""
    return row["ms"][THEIRS[row["runtime"]][0]] / row["ms"][row["runtime"]]


def best_of_theirs(row: dict[str, Any]) -> float:
    found = [row["sqnr"][name] for name in THEIRS[row["runtime"]] if name in row["sqnr"]]
    return max(found, default=float("nan"))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, for each runtime; rows where one fails do not count."""
    lines = []
    for runtime in dict.fromkeys(row["runtime"] for row in rows):
        own = [row for row in rows if row["runtime"] == runtime]
        ratios = [value for value in map(ratio, own) if value == value]
        lost = [best_of_theirs(row) - row["sqnr"].get(runtime, float("nan")) for row in own]
        lost = [value for value in lost if value == value]
        lines.append(
            {
                "": runtime,
                f"mean ratio (wanted {LEAST_MEAN})": statistics.geometric_mean(ratios) if ratios else float("nan"),
                f"least (wanted {LEAST})": min(ratios, default=float("nan")),
                f"most dB below (wanted {MOST_LOST})": max(lost, default=float("nan")),
            }
        )
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS, *MORE], help="names of torchvision.models")
    parser.add_argument("--runtimes", nargs="+", default=list(THEIRS), choices=list(THEIRS), metavar="RUNTIME")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two networks, 3 rounds: to see that it runs")
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 3
        options.models = ["resnet18", "mobilenet_v2"] if len(options.models) > len(MODELS) else options.models
    return options


if __name__ == "__main__":
    main()
