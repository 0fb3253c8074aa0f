"""One checkout in ``checkouts.py``: a process that quantizes a network and answers questions about it.

It imports ``fxquant`` and nothing below it: another checkout may keep its modules elsewhere.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import fxquant as fxq

TURN = 0.2
"""Seconds of a turn at least."""
WARM = 4
"""Calls before the first turn: a program is made in the third."""


def serve(task: Path, answer: Path, checkout: str) -> None:
    """Quantize, write what the int8 model makes of the judged images, then answer each line with milliseconds.

    Args:
        task: File of the model, the batches to calibrate on, the judged images, the number of threads, and the size of
            a batch.
        answer: Where the outputs are written; a line of JSON says when they are there.
        checkout: Whose package this process shall have imported.
    """
    if not Path(fxq.__file__).is_relative_to(checkout):
        sys.exit(f"fxquant was imported from {fxq.__file__}, not from {checkout}")
    model, batches, judged, threads, batch = torch.load(task, weights_only=False)
    torch.set_num_threads(threads)
    with torch.no_grad():
        prepared = fxq.calibrate(fxq.prepare(model, batches[0][:1]), batches, progress=False)
        int8 = fxq.convert(prepared)
        torch.save(int8(judged), answer)
        print(json.dumps("ready"), flush=True)
        x = judged[:1].expand(batch, -1, -1, -1).contiguous()
        for _ in range(WARM):
            int8(x)
        for line in sys.stdin:
            ms = milliseconds(int8, x) if line.strip() == "turn" else milliseconds_to_convert(model, x)
            print(json.dumps(ms), flush=True)


def milliseconds_to_convert(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Of prepare, calibrate on one image, and convert."""
    begin = time.perf_counter()
    fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
    return 1e3 * (time.perf_counter() - begin)


def milliseconds(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Of a call: the median of a turn, whose first call is not counted."""
    model(x)
    times: list[float] = []
    start = time.perf_counter()
    while not times or time.perf_counter() - start < TURN:
        begin = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - begin)
    return 1e3 * sorted(times)[len(times) // 2]


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
