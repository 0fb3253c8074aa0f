"""int8 inference against float and against torch.ao's FX graph mode: interleaved, median of 30 rounds, one process.

Networks have random weights and batch-norm statistics taken from photographs, so that SQNR against float means
something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from peers import PEERS
from tabulate import tabulate

from fxquant.demo.measure import interleaved_medians, machine
from fxquant.noise import sqnr
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch

MODELS = ("resnet18", "resnet50", "mobilenet_v2")
OURS, FLOAT = "fxquant", "fp32"


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    about = {"machine": machine(), "rounds": options.rounds}
    print("\n".join(f"{key}: {value}" for key, value in about["machine"].items()), flush=True)
    rows: list[dict] = []
    for name in options.models:
        start = time.perf_counter()
        rows += measure(name, options)
        if options.json:  # after each network: a run that is cut short has not measured in vain
            Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(tabulate([table_row(row) for row in rows], headers="keys", floatfmt=".2f"))
    print()
    print(tabulate(summary(rows), headers="keys", floatfmt=".2f"))


def measure(name: str, options: argparse.Namespace) -> list[dict]:
    """One row per batch size: milliseconds and SQNR of every contestant."""
    calibration = calibration_batches(batch_size=8, num_batches=2 if options.quick else 4)
    images, _ = labelled_batch()
    model = random_network(name, calibration)
    with torch.no_grad():
        contestants = {peer: PEERS[peer](model, calibration) for peer in options.peers}
        logits = model(images)
        quality = {peer: sqnr(logits, call(images)) for peer, call in contestants.items() if not peer.startswith(FLOAT)}
        rows = []
        for size in options.batch:
            x = images[:1].expand(size, -1, -1, -1).contiguous() if size > len(images) else images[:size].contiguous()
            calls = {peer: (lambda call=call, x=x: call(x)) for peer, call in contestants.items()}
            ms = interleaved_medians(calls, options.rounds)
            rows.append({"model": name, "batch": size, "ms": ms, "sqnr": quality})
    return rows


def table_row(row: dict) -> dict:
    shown = {"model": row["model"], "batch": row["batch"]} | {f"{peer} ms": ms for peer, ms in row["ms"].items()}
    shown |= {f"{peer} dB": value for peer, value in row["sqnr"].items()}
    return shown


def summary(rows: list[dict]) -> list[dict]:
    """How many times faster than each other contestant the first int8 one is."""
    peers = list(rows[0]["ms"])
    ours = OURS if OURS in peers else next(peer for peer in peers if not peer.startswith(FLOAT))
    lines = []
    for other in peers:
        if other == ours:
            continue
        ratios = {f"{row['model']} b{row['batch']}": row["ms"][other] / row["ms"][ours] for row in rows}
        mean = statistics.geometric_mean(ratios.values())
        lines.append({f"{ours} is faster than": other, **ratios, "geometric mean": mean})
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of torchvision.models")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="3 rounds: to see that it runs, not to quote")
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 3
    return options


if __name__ == "__main__":
    main()
