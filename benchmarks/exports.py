"""Files of ``fxq.export_onnx`` in ONNX Runtime and OpenVINO, beside those of the runtimes' own quantizers.

Same networks, calibration and turns as ``int8.py``. A ratio above 1 says that ours is faster; SQNR against float is
measured on 64 crops of photographs that were not calibrated on, and theirs is that of the best of their calibrators:
of all crops together, which a few that reach beyond the ranges of calibration decide, and of the median one.
Where ours is more than half a dB below, ``fxq.compare`` names the layer that loses most. Networks that the JSON file
holds are not measured again. Each file is made once, in ``--files``, and read by later runs: ``--make`` makes those
that are missing and measures nothing, on a busy machine, too. Delete what another version made. Needs
``pip install onnx onnxscript onnxruntime openvino nncf``; what is missing costs its column. The machine must be quiet
while it measures.

python benchmarks/exports.py --make && python benchmarks/exports.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from exported import TARGETS, THEIRS, planned_for
from int8 import MODELS
from kept_files import FOLDER
from runtimes import versions
from tabulate import tabulate
from torch import Tensor, nn
from torchvision.transforms import functional as transforms
from turns import compete, median_ms
from zoo import finished

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import CROP, MEAN, RESIZE, STD, calibration_batches, labelled_photographs

MORE = ("mobilenet_v3_small",)
LEAST_MEAN, LEAST = 0.97, 0.9
"""What the geometric mean of all ratios, and each, is to reach."""
MOST_LOST = 0.5
"""dB that ours may lie below theirs."""
HELD_OUT = 64
"""Images that SQNR is measured on."""


def main() -> None:
    options = arguments()
    about = machine() | dict(versions())
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    torch.set_num_threads(options.threads)
    settings = {each: getattr(options, each) for each in ("runtimes", "batch", "threads", "rounds", "crops", "clock")}
    path = Path(options.json)
    found = {} if options.fresh else finished(path, settings)
    for name in options.models:
        if name in found and not options.make:
            continue
        start = time.perf_counter()
        os.environ[FOLDER] = str(Path(options.files, f"{name}-{options.crops}").absolute())
        if options.make:
            make_files(name, options)
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            continue
        found[name] = measure(name, options)
        path.parent.mkdir(parents=True, exist_ok=True)  # after each network: what is cut short goes on there
        path.write_text(json.dumps({"machine": about, "settings": settings, "rows": found}, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if options.make:
        return
    rows = [row for name in options.models for row in found[name]]
    print(tabulate([line(row) for row in rows], headers="keys", floatfmt=".2f"), end="\n\n")
    print(tabulate(summary(rows), headers="keys", floatfmt=".2f"))
    for row in rows:
        if row["worst"]:
            print(f"{row['model']}, {row['runtime']}: {', '.join(row['worst'])}")


def contestants_of(options: argparse.Namespace) -> list[str]:
    """Ours and theirs, of each runtime that was asked for."""
    return [each for runtime in THEIRS if runtime in options.runtimes for each in (runtime, *THEIRS[runtime])]


def make_files(name: str, options: argparse.Namespace) -> None:
    """Make the files of a network that are missing; each runs once."""
    calibration = calibration_batches(batch_size=8, num_batches=options.crops // 8)
    model = random_network(name, calibration)
    compete(contestants_of(options), model, calibration, {}, calibration[0][:1], 0)


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per runtime: milliseconds and SQNR of ours and of theirs."""
    calibration = calibration_batches(batch_size=8, num_batches=options.crops // 8)
    images = held_out(HELD_OUT)
    model = random_network(name, calibration)
    wanted = [runtime for runtime in THEIRS if runtime in options.runtimes]
    timed = {options.batch: images[: options.batch].contiguous()}
    contestants, outputs = compete(
        contestants_of(options), model, calibration, timed, images, options.rounds, options.clock
    )
    with torch.no_grad():
        exact = model(images)
    ms = {each.name: median_ms(each, options.batch) for each in contestants}
    noise = {peer: sqnr(exact, output) for peer, output in outputs.items()}
    of_images = {
        peer: statistics.median(sqnr(*image) for image in zip(exact, output, strict=True))
        for peer, output in outputs.items()
    }
    failures = {each.name: each.failure for each in contestants if each.failure}
    rows = [
        {
            "model": name,
            "runtime": runtime,
            "ms": {each: ms[each] for each in (runtime, *THEIRS[runtime])},
            "sqnr": {each: noise[each] for each in (runtime, *THEIRS[runtime]) if each in noise},
            "median_sqnr": {each: of_images[each] for each in (runtime, *THEIRS[runtime]) if each in of_images},
            "failures": {each: failures[each] for each in (runtime, *THEIRS[runtime]) if each in failures},
        }
        for runtime in wanted
    ]
    return [row | {"worst": worst_layers(row, model, calibration, images)} for row in rows]


def held_out(count: int) -> Tensor:
    """Crops of the labelled photographs, normalised: first all that show one corner, then the next, then the middle."""
    crops = [transforms.five_crop(transforms.resize(each.image, [RESIZE]), [CROP]) for each in labelled_photographs()]
    shown = [row[place] for place in range(5) for row in crops][:count]
    pixels = torch.stack([transforms.pil_to_tensor(image) for image in shown]).float() / 255
    return transforms.normalize(pixels, list(MEAN), list(STD))


def worst_layers(row: dict[str, Any], model: nn.Module, calibration: list[Tensor], images: Tensor) -> list[str]:
    """The layers that lose most, where ours lies too far below the best of theirs; none where it does not."""
    if not below(row) > MOST_LOST:
        return []
    ours = planned_for(model, calibration, TARGETS[row["runtime"]])
    found = fxq.compare(model, ours, images.split(16), progress=False).worst(3)
    return [f"{each.name} loses {100 * each.harm:.2g} % of its signal" for each in found]


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
        "median image": row["median_sqnr"].get(runtime, float("nan")),
        "theirs of it": best_of_theirs(row, "median_sqnr"),
        "failed": ", ".join(row["failures"]),
    }


def ratio(row: dict[str, Any]) -> float:
    """How many times as fast ours is; theirs are as fast as each other, whatever calibrated them."""
    return row["ms"][THEIRS[row["runtime"]][0]] / row["ms"][row["runtime"]]


def best_of_theirs(row: dict[str, Any], of: str = "sqnr") -> float:
    found = [row[of][name] for name in THEIRS[row["runtime"]] if name in row[of]]
    return max(found, default=float("nan"))


def below(row: dict[str, Any]) -> float:
    """How many dB ours lies below the best of theirs; NaN where one is missing."""
    return best_of_theirs(row) - row["sqnr"].get(row["runtime"], float("nan"))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, for each runtime; rows where one fails do not count."""
    lines = []
    for runtime in dict.fromkeys(row["runtime"] for row in rows):
        own = [row for row in rows if row["runtime"] == runtime]
        ratios = [value for value in map(ratio, own) if value == value]
        lost = [value for value in map(below, own) if value == value]
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
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: on a machine with other work")
    parser.add_argument("--quick", action="store_true", help="two networks, 3 rounds: to see that it runs")
    parser.add_argument("--crops", type=int, default=32, help="that all calibrate on, a multiple of 8")
    parser.add_argument("--json", default="out/exports.json", help="where all is written, and read from")
    parser.add_argument("--files", default="out/exports_files", help="where the files of all contestants are kept")
    parser.add_argument("--make", action="store_true", help="make the files that are missing, and measure nothing")
    parser.add_argument("--fresh", action="store_true", help="measure what the JSON file holds, too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.crops = 3, 16
        options.models = ["resnet18", "mobilenet_v2"] if len(options.models) > len(MODELS) else options.models
    return options


if __name__ == "__main__":
    main()
