"""Activations of transformers: one range for a value, one for each token, and channels smoothed before calibration.

MiniLM with its real weights embeds 2,000 sentences of film reviews, 96 others calibrate. Columns: accuracy of the
linear head on the embeddings; how often it decides as with floats, with half the width of the 95 % interval; SQNR of
the embeddings; seconds to make the model. ``--speed`` measures linear layers alone: microseconds a call of those that
choose qparams in each call, for the whole input and for each token, in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from real_task import Task, outputs
from real_text import minilm_task
from tabulate import tabulate
from torch import nn

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.measure.noise import sqnr

SIZES = ((384, 384), (384, 1536), (1536, 384))
ROWS = (1, 40, 2000)
ROUNDS = 15


def static(task: Task) -> nn.Module:
    return fxq.convert(fxq.calibrate(fxq.prepare(task.model, task.calibration[0]), task.calibration, progress=False))


def smoothed(task: Task) -> nn.Module:
    prepared = fxq.equalize(fxq.prepare(task.model, task.calibration[0]), task.calibration, progress=False)
    return fxq.convert(fxq.calibrate(prepared, task.calibration, progress=False))


def in_each_call(qconfig: fxq.QConfig) -> Callable[[Task], nn.Module]:
    return lambda task: fxq.convert(fxq.prepare(task.model, task.calibration[0], qconfig))


METHODS: dict[str, Callable[[Task], nn.Module]] = {
    "calibrated": static,
    "calibrated, smoothed": smoothed,
    "in each call": in_each_call(fxq.default_dynamic_qconfig),
    "in each call, per token": in_each_call(fxq.default_per_token_qconfig),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--speed", action="store_true", help="measure linear layers, and nothing else")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        rows = speeds() if options.speed else accuracies(options.methods)
    about = {"machine": machine(), "rows": rows}
    if options.json:
        Path(options.json).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(tabulate(rows, headers="keys", floatfmt=".4g"))


def accuracies(methods: list[str]) -> list[dict[str, Any]]:
    task = minilm_task()
    assert task.decide is not None
    expected = outputs(task.model, task.batches)
    decided, count = task.decide(expected), len(expected)
    rows = [{"ranges": "float", "accuracy, %": task.score(expected)}]
    for name in methods:
        start = time.perf_counter()
        model = METHODS[name](task)
        seconds = time.perf_counter() - start
        got = outputs(model, task.batches)
        same = float((task.decide(got) == decided).float().mean())
        rows.append(
            {
                "ranges": name,
                "accuracy, %": task.score(got),
                "agreement": same,
                "±": 1.96 * (same * (1 - same) / count) ** 0.5,
                "SQNR, dB": sqnr(expected, got),
                "s": seconds,
            }
        )
        print("; ".join(f"{column}: {value}" for column, value in rows[-1].items()), flush=True)
    return rows


def speeds() -> list[dict[str, Any]]:
    rows = []
    for inputs, features in SIZES:
        for count in ROWS:
            torch.manual_seed(0)
            x, layer = torch.randn(count, inputs), nn.Sequential(nn.Linear(inputs, features)).eval()
            models = {
                name: fxq.convert(fxq.prepare(layer, x, qconfig), engine="graph")
                for name, qconfig in (("tensor", fxq.default_dynamic_qconfig), ("token", fxq.default_per_token_qconfig))
            }
            models["token, program"] = fxq.convert(fxq.prepare(layer, x, fxq.default_per_token_qconfig))
            taken = in_turn(models, x)
            ratio = taken["token"] / taken["tensor"]
            rows.append({"in": inputs, "out": features, "rows": count, **taken, "token / tensor": ratio})
    return rows


def in_turn(models: dict[str, nn.Module], x: torch.Tensor) -> dict[str, float]:
    """Return the median of microseconds of each, measured one after the other, round by round."""
    times: dict[str, list[float]] = {name: [] for name in models}
    calls = max(1, 40000 // len(x) // 20)
    for _ in range(ROUNDS):
        for name, model in models.items():
            model(x)
            start = time.perf_counter()
            for _ in range(calls):
                model(x)
            times[name].append(1e6 * (time.perf_counter() - start) / calls)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    main()
