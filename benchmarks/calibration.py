"""What quantizing costs: calibration against the forward passes it contains, prepare + convert, and the import."""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from clocks import add_clock, medians

import fxquant as fxq
from fxquant.calibration.statistics import CalibrationStatistics
from fxquant.demo.measure import machine
from fxquant.observers.bins import Bins
from fxquant.samples.networks import mobilenet_v2, random_network
from fxquant.samples.photographs import calibration_batches

IMPORT = "import time, torch; start = time.perf_counter(); import fxquant; print(time.perf_counter() - start)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="3 rounds: to see that it runs, not to quote")
    parser.add_argument("--json", help="also write everything to this file")
    add_clock(parser)
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    torch.set_num_threads(options.threads)
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    found = {**calibration(rounds, options.clock), **histograms(rounds, options.clock)}
    found |= {**preparation(min(rounds, 5)), **import_time(min(rounds, 5))}
    for name, (value, unit) in found.items():
        print(f"{name:<60} {value:8.3f} {unit}")
    if options.json:
        results = {name: value for name, (value, _) in found.items()}
        everything = {"machine": about, "rounds": rounds, "results": results}
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")


def calibration(rounds: int, clock: str) -> dict[str, tuple[float, str]]:
    """MobileNetV2, batch 16, with histograms (the default) and with minima and maxima."""
    model, (batch,) = mobilenet_v2(), calibration_batches(16, 1)
    weight = fxq.get_default_qconfig().weight
    prepared = {
        "histogram": fxq.prepare(model, batch[:1]),
        "min-max": fxq.prepare(model, batch[:1], fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight)),
    }

    def plain() -> None:
        with torch.no_grad():
            model(batch)

    bare = copy.deepcopy(prepared["histogram"])
    bare.calibration_statistics = CalibrationStatistics(bare.graph_module, fxq.QuantPlan(), torch.nn.ModuleDict())
    contestants = {name: functools.partial(each.observe, batch) for name, each in prepared.items()}
    contestants["histogram without statistics"] = functools.partial(bare.observe, batch)
    theirs = torch_ao_prepared(model, batch[:1])
    contestants["torch.ao's"] = functools.partial(torch.no_grad()(theirs), batch)
    ms = medians({"plain": plain, **contestants}, rounds, clock)
    what = "mobilenet_v2, batch 16"
    found = {f"{what}: forward": (ms["plain"], "ms")}
    for name in contestants:
        found[f"{what}: forward with {name} calibration"] = (ms[name], "ms")
        found[f"{what}: {name} calibration / forward"] = (ms[name] / ms["plain"], "times")
    share = ms["histogram"] / ms["histogram without statistics"] - 1
    found[f"{what}: the report's statistics / calibration"] = (100 * share, "%")
    return found


def torch_ao_prepared(model: torch.nn.Module, example: torch.Tensor) -> torch.nn.Module:
    """The same with torch.ao's observers in the graph, of its default mapping."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_fx

        return prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("onednn"), (example,))


def histograms(rounds: int, clock: str) -> dict[str, tuple[float, str]]:
    """One observer on one tensor of 13 MB, by one thread."""
    x, observer = torch.randn(16, 64, 56, 56), fxq.HistogramObserver()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ms = medians({"clone": x.clone, "histogram": lambda: observer(x)}, 5 * rounds, clock)
        seen = observer.counts, observer.min_val, observer.max_val
        # Not chosen_range, which searches once and remembers what it found.
        search = medians({"search": lambda: observer.choose(Bins.of(*seen))}, rounds, clock)["search"]
    finally:
        torch.set_num_threads(threads)
    return {
        "13 MB, 1 thread: histogram": (ms["histogram"], "ms"),
        "13 MB, 1 thread: histogram / clone": (ms["histogram"] / ms["clone"], "times"),
        "search for the range": (search, "ms"),
    }


def preparation(rounds: int) -> dict[str, tuple[float, str]]:
    """ResNet-50, random weights."""
    batches = calibration_batches(2, 1)
    model = random_network("resnet50", batches)
    times: dict[str, list[float]] = {"prepare": [], "convert": []}
    for _ in range(rounds):
        start = time.perf_counter()
        prepared = fxq.prepare(model, batches[0])
        prepare_end = time.perf_counter()
        fxq.calibrate(prepared, batches, progress=False)
        convert_start = time.perf_counter()
        fxq.convert(prepared)
        times["convert"].append(time.perf_counter() - convert_start)
        times["prepare"].append(prepare_end - start)
    seconds = {f"resnet50: {name}": statistics.median(values) for name, values in times.items()}
    return {name: (value, "s") for name, value in {**seconds, "resnet50: both": sum(seconds.values())}.items()}


def import_time(rounds: int) -> dict[str, tuple[float, str]]:
    """Of fxquant alone, in a new process that has imported torch; its bytecode is there, as after any first run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", IMPORT]
    seconds = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
        for _ in range(1 + rounds)
    ]
    return {"import fxquant, after torch": (statistics.median(seconds[1:]), "s")}


if __name__ == "__main__":
    main()
