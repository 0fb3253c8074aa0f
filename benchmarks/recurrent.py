"""LSTM, GRU or RNN layers with ranges measured in each call: fxquant, torch.ao's ``quantize_dynamic``, and float.

One process, contestants in turns, medians; signal to quantization noise against the float layer. ``ratio`` is
torch.ao's time by fxquant's: above 1, fxquant is quicker. torch.ao has no int8 ``nn.RNN``: there it is float.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import interleaved_medians, machine
from fxquant.measure.noise import sqnr

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="lstm")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for hidden in options.hidden:
            for batch in options.rows:
                row = measure(KINDS[options.kind], options.steps, batch, hidden, options.rounds)
                rows.append({"threads": threads, "hidden": hidden, "rows": batch, **row})
                print(rows[-1], flush=True)
    print(tabulate(rows, headers="keys", floatfmt=".2f"), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, "rounds": options.rounds, "rows": rows}, indent=1))


def measure(kind: Any, steps: int, rows: int, hidden: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a call of each contestant, and what each loses, in dB."""
    torch.manual_seed(0)
    model, x = nn.Sequential(kind(hidden, hidden)).eval(), torch.randn(steps, rows, hidden)
    contestants = {"float": model, "fxquant": fxq.convert(fxq.prepare(model, x, fxq.default_dynamic_qconfig))}
    contestants["torch.ao"] = torch_ao(model, kind)
    with torch.inference_mode():
        calls = {name: caller(each, x) for name, each in contestants.items()}
        results = {name: [call()[0] for _ in range(3)][-1] for name, call in calls.items()}
        ms = interleaved_medians(calls, rounds)
    of_noise = {f"{name} dB": sqnr(results["float"], results[name]) for name in ("fxquant", "torch.ao")}
    return {**ms, "ratio": ms["torch.ao"] / ms["fxquant"], **of_noise}


def caller(model: nn.Module, x: Tensor) -> Any:
    return lambda: model(x)


def torch_ao(model: nn.Module, kind: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is going to move
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {kind})


if __name__ == "__main__":
    main()
