"""What a call of an int8 network costs, depending on how it is called: engine, order of the input, batch, threads.

Milliseconds per image, medians of turns in one process. The network has random weights; its input is random images of
224 pixels.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from tabulate import tabulate

import fxquant as fxq
from fxquant.demo.measure import interleaved_medians, machine
from fxquant.samples.networks import make_meaningful

BATCHES = (1, 4, 16)
FIRST_CALLS = 3
"""After these, a model runs by programs."""


def contestants(name: str, batch: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Ways to call one network."""
    model = getattr(torchvision.models, name)().eval()
    make_meaningful(model)
    x = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    last = x.contiguous(memory_format=torch.channels_last)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    program, graph = fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")
    for _ in range(FIRST_CALLS):
        program(x), program(last), graph(x)
    return {
        "int8, programs": lambda: program(x),
        "int8, programs, channels_last input": lambda: program(last),
        "int8, graph": lambda: graph(x),
        "float": lambda: model(x),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mobilenet_v2"], help="names of torchvision.models")
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    print("\n".join(f"{key}: {value}" for key, value in machine().items() if key != "threads"), flush=True)
    results = []
    for name in options.models:
        rows: dict[str, dict[str, float]] = {}
        torch.manual_seed(0)
        for batch in options.batch:
            calls = contestants(name, batch)
            for threads in options.threads:
                torch.set_num_threads(threads)
                with torch.no_grad():
                    ms = interleaved_medians(calls, options.rounds)
                for way, each in ms.items():
                    rows.setdefault(way, {})[f"batch {batch}, threads {threads}"] = each / batch
        columns = list(next(iter(rows.values())))
        table = [[way, *(times[column] for column in columns)] for way, times in rows.items()]
        print(tabulate(table, headers=(f"{name}, ms per image", *columns), floatfmt=".2f"), flush=True)
        results.append({"model": name, "rows": rows})
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
