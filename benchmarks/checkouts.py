"""This checkout of fxquant beside another one: speed and noise of int8, time of convert and of the import.

``--against`` names the other checkout, with its kernels built; without it, this one competes with itself, which shows
how steady the figures are. Each has a process of its own that imports its own package; both quantize the same network
(random weights that mean something), calibrated on the same photographs, and take turns on one image, or on a
``--batch`` of copies of it. Decibels are those of other photographs, against the float model. A network is slower if
the median of the ratios of neighbouring turns says so by more than 3 %. ``plan`` is the time of prepare, calibrate on
one image and convert.

The default networks are full of joins, whose rounding decides about noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from tabulate import tabulate

from fxquant.demo.measure import machine
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch

HERE = Path(__file__).resolve().parent.parent
MODELS = ("googlenet", "densenet121", "shufflenet_v2_x1_0", "inception_v3")
SIDE = {"inception_v3": 299}
"""Pixels of an image, where they are not 224."""
SLOWER = 1.03
"""How many times as long a call may take as before."""
WORSE = 0.05
"""dB that are no loss: what is printed has one digit."""


@dataclass
class Checkout:
    """One process, which imports the package of one checkout."""

    process: subprocess.Popen[str]

    def ask(self, question: str) -> Any:
        assert self.process.stdin is not None
        print(question, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a process has ended; what it said stands above")
        return json.loads(line)


def started(stack: ExitStack, checkout: Path, task: Path, answer: Path) -> Checkout:
    command = [sys.executable, str(HERE / "benchmarks" / "checkout_process.py"), str(task), str(answer), str(checkout)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(checkout)}, **pipes)
    stack.enter_context(process)
    stack.callback(process.kill)
    return Checkout(process)


def measured(
    name: str, against: Path, rounds: int, plan_rounds: int, side: int, seed: int, batch: int
) -> dict[str, Any]:
    """A row: what both checkouts make of a network."""
    batches = list(calibration_batches(batch_size=8, num_batches=4, side=side))
    model = random_network(name, batches, seed)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        task = Path(folder, "task.pt")
        judged = labelled_batch(side)[0]
        torch.save((model, batches, judged, torch.get_num_threads(), batch), task)
        answers = [Path(folder, f"{name}.pt") for name in ("before", "now")]
        before, now = (started(stack, *each) for each in zip((against, HERE), (task, task), answers, strict=True))
        for checkout in (before, now):
            checkout.answer()
        decibels = [sqnr(model(judged), torch.load(answer)) for answer in answers]
        turns = [(before.ask("turn"), now.ask("turn")) for _ in range(rounds)]
        plans = [(before.ask("plan"), now.ask("plan")) for _ in range(plan_rounds)]
    row = {
        "model": name,
        "before ms": statistics.median(old for old, _ in turns),
        "now ms": statistics.median(new for _, new in turns),
        "now / before": statistics.median(new / old for old, new in turns),
        "plan now / before": statistics.median(new / old for old, new in plans),
        "before dB": decibels[0],
        "now dB": decibels[1],
    }
    slower, worse = row["now / before"] > SLOWER, decibels[1] < decibels[0] - WORSE
    return row | {"verdict": ", ".join(said for said, is_so in (("slower", slower), ("noisier", worse)) if is_so)}


def import_ratio(against: Path, rounds: int) -> float:
    """Time of ``import fxquant`` behind ``import torch``, as a ratio of this checkout to the other one."""
    code = "import time, torch; t = time.perf_counter(); import fxquant; print(time.perf_counter() - t)"

    def seconds(checkout: Path) -> float:
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        return float(subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=checkout, text=True))

    turns = [(seconds(against), seconds(HERE)) for _ in range(rounds)]
    return statistics.median(now / before for before, now in turns)


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    print("\n".join(f"{key}: {value}" for key, value in machine().items()), flush=True)
    with torch.no_grad():
        rows = [
            measured(
                name,
                options.against.resolve(),
                options.rounds,
                options.plan_rounds,
                options.side or SIDE.get(name, 224),
                options.seed,
                options.batch,
            )
            for name in options.models
        ]
    print(tabulate(rows, headers="keys", floatfmt=("", ".2f", ".2f", ".3f", ".3f", ".1f", ".1f", "")))
    imported = import_ratio(options.against.resolve(), options.plan_rounds)
    print(f"import fxquant, now / before: {imported:.3f}")
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(
            json.dumps({"machine": machine(), "import now / before": imported, "rows": rows}, indent=1) + "\n"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--against", type=Path, default=HERE, metavar="PATH", help="the checkout before; default: this one"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=MODELS,
        choices=torchvision.models.list_models(torchvision.models),
        metavar="MODEL",
    )
    parser.add_argument("--rounds", type=int, default=30, help="turns of each checkout")
    parser.add_argument("--plan-rounds", type=int, default=5, help="turns of prepare and convert, and of the import")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", type=int, help="pixels of an image; default: 224, Inception 299")
    parser.add_argument("--batch", type=int, default=1, help="images of a call")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    parser.add_argument("--json", help="also write everything to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
