"""MiniLM with weights of 4 bits and activations in float: rounded to nearest, with scales of least error, by ``gptq``.

python benchmarks/gptq.py --json gptq.json     # 96 sentences to round by, 2,000 to measure; some minutes on one core
Only linear layers are quantized. SQNR is that of the embeddings against float. Decisions are those of a linear head on
the embeddings (``real_text.py``). Both intervals are of 95 %: that of the SQNR by bootstrap over sentences.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from real_task import outputs
from real_text import minilm_task
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import machine

RESAMPLES = 1000
CONFIGURATIONS: dict[str, int | None] = {"per channel": None, "groups of 32": 32}


def sqnr_interval(exact: Tensor, given: Tensor) -> tuple[float, float, float]:
    """SQNR in dB, and the ends of its interval."""
    signal, noise = exact.square().sum(1).double(), (given - exact).square().sum(1).double()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(signal), (RESAMPLES, len(signal)), generator=generator)
    found = 10 * torch.log10(signal[drawn].sum(1) / noise[drawn].sum(1))
    low, high = torch.quantile(found, torch.tensor([0.025, 0.975]).double()).tolist()
    return 10 * math.log10(float(signal.sum() / noise.sum())), low, high


def row_of(task: Any, name: str, expected: Tensor, prepared: fxq.Quantizer, seconds: float) -> dict[str, Any]:
    given = outputs(fxq.convert(prepared), task.batches)
    sqnr, low, high = sqnr_interval(expected, given)
    same = float((task.decide(given) == task.decide(expected)).float().mean())
    return {
        "weights": name,
        "SQNR, dB": round(sqnr, 2),
        "interval": [round(low, 2), round(high, 2)],
        "agreement": round(same, 4),
        "±": round(1.96 * math.sqrt(same * (1 - same) / len(given)), 4),
        task.metric: round(task.score(given), 2),
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    task = minilm_task()
    rows = []
    with torch.no_grad():
        expected = outputs(task.model, task.batches)
        for name, group_size in CONFIGURATIONS.items():
            qconfig = fxq.weight_only_qconfig(options.bits, group_size)
            mapping = fxq.QConfigMapping().set_object_type(nn.Linear, qconfig)
            prepared = fxq.prepare(task.model, task.calibration[0], mapping)
            rows.append(row_of(task, f"{name}, nearest", expected, prepared, 0.0))
            start = time.perf_counter()
            rounded = fxq.gptq(prepared, task.calibration, progress=False)
            rows.append(row_of(task, f"{name}, gptq", expected, rounded, time.perf_counter() - start))
    print(tabulate(rows, headers="keys"))
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine(), "float": task.score(expected), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
