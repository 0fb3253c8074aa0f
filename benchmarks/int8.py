"""int8 inference against float, torch.ao's FX graph mode, and other runtimes: who is how many times faster.

Every contestant has a process of its own, and they take turns of a tenth of a second; who has no turn is stopped. Turns
that other processes disturb are repeated; medians count. Networks have random weights and batch-norm statistics taken
from photographs, so that SQNR against float means something. It is given twice: on photographs of the calibration,
where only rounding makes noise, and on new ones, whose values may have to be clipped: a random network answers to
contrast as a trained one does not, and who leaves half of a range unused, as ``reduce_range`` does, clips less there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from clocks import add_clock
from peers import PEERS
from runtimes import RUNTIMES, versions
from tabulate import tabulate
from turns import ALL, compete, median_ms

from fxquant.demo.measure import machine
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch

MODELS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "googlenet",
    "vit_b_16",
    "swin_t",
)
DEFAULT = [*PEERS, *RUNTIMES]
OURS, FLOAT = "fxquant", ("fp32", "OpenVINO float")


def main() -> None:
    options = arguments()
    about = {"machine": machine() | dict(versions()), "rounds": options.rounds, "clock": options.clock}
    print("\n".join(f"{key}: {value}" for key, value in about["machine"].items() if key != "threads"), flush=True)
    rows: list[dict] = []
    for name in options.models:
        for threads in options.threads:
            start = time.perf_counter()
            torch.set_num_threads(threads)
            rows += measure(name, threads, options)
            if options.json:  # after each network: a run that is cut short has not measured in vain
                Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
            print(f"{name}, {threads} threads: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(tabulate([time_row(row) for row in rows], headers="keys", floatfmt=".2f"), end="\n\n")
    quality = {
        (row["model"], seen): {"dB": row["model"], "photographs": seen} | values
        for row in rows
        for seen, values in row["sqnr"].items()
    }
    print(tabulate(list(quality.values()), headers="keys", floatfmt=".1f"), end="\n\n")
    print(tabulate(summary(rows), headers="keys", floatfmt=".2f"))


def measure(name: str, threads: int, options: argparse.Namespace) -> list[dict]:
    """One row per batch size: milliseconds and SQNR of every contestant."""
    calibration = calibration_batches(batch_size=8, num_batches=2 if options.quick else 4)
    images, _ = labelled_batch()
    model = random_network(name, calibration)
    inputs = {
        size: images[:1].expand(size, -1, -1, -1).contiguous() if size > len(images) else images[:size].contiguous()
        for size in options.batch
    }
    judged = {"of the calibration": calibration[0], "new": images}
    sizes = [len(group) for group in judged.values()]
    contestants, outputs = compete(
        options.peers, model, calibration, inputs, torch.cat(list(judged.values())), options.rounds, options.clock
    )
    with torch.no_grad():
        logits = [model(group) for group in judged.values()]
    answers = {peer: y.split(sizes) for peer, y in outputs.items() if not peer.startswith(FLOAT)}
    quality = {
        seen: {peer: sqnr(exact, parts[index]) for peer, parts in answers.items()}
        for index, (seen, exact) in enumerate(zip(judged, logits, strict=True))
    }
    return [
        {
            "model": name,
            "batch": size,
            "threads": threads,
            "ms": {each.name: median_ms(each, size) for each in contestants},
            "sqnr": quality,
            "disturbed": {each.name: each.disturbed for each in contestants},
            "failures": {each.name: each.failure for each in contestants if each.failure},
        }
        for size in inputs
    ]


def time_row(row: dict) -> dict:
    return {"ms": f"{row['model']} b{row['batch']}", "threads": row["threads"]} | row["ms"]


def summary(rows: list[dict]) -> list[dict]:
    """How many times faster than each other contestant the first one of ours is; rows where one fails do not count."""
    peers = list(rows[0]["ms"])
    ours = next((peer for peer in peers if peer.startswith(OURS)), peers[0])
    lines = []
    for other in peers:
        ratios = [row["ms"][other] / row["ms"][ours] for row in rows]
        ratios = [ratio for ratio in ratios if ratio == ratio]
        if other != ours and ratios:
            mean = statistics.geometric_mean(ratios)
            lines.append({f"{ours} is faster than": other, "geometric mean": mean, "least": min(ratios)})
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of torchvision.models")
    parser.add_argument("--peers", nargs="+", default=DEFAULT, choices=list(ALL), metavar="PEER", help=", ".join(ALL))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two networks, batch 1, 3 rounds: to see that it runs")
    add_clock(parser)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batch, options.threads = 3, [1], [2]
        options.models = ["resnet18", "mobilenet_v2"] if options.models == list(MODELS) else options.models
    return options


if __name__ == "__main__":
    main()
