"""Post-training quantization of networks with their real weights on real data: a line for each when it is measured.

Per-channel int8 weights, uint8 activations, the default observers. Columns: the task's score with floats, int8 and the
simulation; how often int8 decides as float does; SQNR of the output; the share of multiply-accumulates in int8; what
stays float without an excuse; score and SQNR of torch.ao's FX graph mode (x86), or why there is none; and seconds to
prepare, calibrate and convert.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import PEERS
from real_classifiers import efficientnet_lite0_task, mobilenet_v2_task
from real_images import demosaicnet_task, onet_task, rnet_task
from real_task import Task, outputs
from real_text import minilm_task
from tabulate import tabulate

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.measure.noise import sqnr

TASKS: dict[str, Callable[[], Task]] = {
    "rnet": rnet_task,
    "onet": onet_task,
    "mobilenet_v2": mobilenet_v2_task,
    "efficientnet_lite0": efficientnet_lite0_task,
    "demosaicnet": demosaicnet_task,
    "minilm": minilm_task,
}
PEER = "torch.ao x86"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = {"machine": machine()}
    print("\n".join(f"{key}: {value}" for key, value in about["machine"].items()), flush=True)
    rows: list[dict[str, Any]] = []
    for name in options.tasks:
        start = time.perf_counter()
        with torch.no_grad():
            rows.append(measure(TASKS[name]()))
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        print("; ".join(f"{column}: {value}" for column, value in table_row(rows[-1]).items()), flush=True)
        if options.json:  # after each: a run that is cut short has not measured in vain
            Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(tabulate([table_row(row) for row in rows], headers="keys", disable_numparse=True))


def measure(task: Task) -> dict[str, Any]:
    """Everything that the row shows, unrounded."""
    expected = outputs(task.model, task.batches)
    start = time.perf_counter()
    prepared = fxq.calibrate(fxq.prepare(task.model, task.calibration[0]), task.calibration, progress=False)
    int8 = fxq.convert(prepared)
    seconds = time.perf_counter() - start
    coverage = prepared.coverage()
    results = {"int8": int8, "simulation": fxq.convert(prepared, to="fake_quant")}
    return {
        "network": task.name,
        "metric": task.metric,
        "target": task.target,
        "float": task.score(expected),
        **{name: compare(task, expected, outputs(model, task.batches)) for name, model in results.items()},
        "torch.ao": attempt(task, expected),
        "int8_macs": coverage.int8_macs,
        "float_operators": Counter(each.operator for each in coverage.float_rows if not each.excused),
        "seconds": seconds,
    }


def compare(task: Task, expected: torch.Tensor, got: torch.Tensor) -> dict[str, Any]:
    same = None if task.decide is None else float((task.decide(got) == task.decide(expected)).float().mean())
    return {"score": task.score(got), "agreement": same, "sqnr": sqnr(expected, got)}


def attempt(task: Task, expected: torch.Tensor) -> dict[str, Any]:
    """What the peer reaches; if it does not convert or run, the first line of its reason."""
    try:
        return compare(task, expected, outputs(PEERS[PEER](task.model, task.calibration), task.batches))
    except Exception as error:  # whatever another tool raises is a result here
        return {"fails": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def table_row(row: dict[str, Any]) -> dict[str, str]:
    int8, peer = row["int8"], row["torch.ao"]
    left = ", ".join(f"{count} {operator}" for operator, count in row["float_operators"].items())
    return {
        "network": row["network"],
        "score": row["metric"],
        "target": row["target"],
        "float": f"{row['float']:.2f}",
        "int8": f"{int8['score']:.2f}",
        "simulation": f"{row['simulation']['score']:.2f}",
        "agreement": "" if int8["agreement"] is None else f"{int8['agreement']:.3f}",
        "SQNR, dB": f"{int8['sqnr']:.2f}",
        "int8 MACs": f"{100 * row['int8_macs']:.1f} %",
        "left in float": left or "nothing",
        PEER: peer["fails"][:40] if "fails" in peer else f"{peer['score']:.2f} ({peer['sqnr']:.2f} dB)",
        "s": f"{row['seconds']:.1f}",
    }


if __name__ == "__main__":
    main()
