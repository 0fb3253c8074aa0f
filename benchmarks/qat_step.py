"""A training step (forward, backward, SGD): the float model, fxquant's ``prepare_qat``, and torch.ao's.

One process, contestants in turns, medians. Bytes are those that the forward pass has allocated and not freed when it
ends: what autograd keeps for the backward pass.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from clocks import add_clock, medians
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--sides", type=int, nargs="+", default=[112, 64])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="one round of 64 x 64: to see that it runs")
    parser.add_argument("--json", help="also write everything to this file")
    add_clock(parser)
    options = parser.parse_args()
    sides, rounds = ([64], 1) if options.quick else (options.sides, options.rounds)
    torch.set_num_threads(options.threads)
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    results = []
    for side in sides:
        rows = measure(options.model, options.batch, side, rounds, options.clock)
        results += [{"side": side, **row} for row in rows]
        print(f"\n{options.model}, batch {options.batch}, {side} x {side}")
        print(tabulate(rows, headers="keys", floatfmt=".2f"), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, "rounds": rounds, "results": results}, indent=1))


def measure(name: str, batch: int, side: int, rounds: int, clock: str) -> list[dict[str, object]]:
    """A row for each contestant, with ratios to the float step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, side, side, generator=generator)
    labels = torch.randint(1000, (batch,), generator=generator)
    torch.manual_seed(0)
    model = torchvision.models.get_model(name).train()
    models = {
        "float": copy.deepcopy(model),
        "fxquant": fxq.prepare_qat(model, x),
        "torch.ao": torch_ao(copy.deepcopy(model), x),
    }
    steps = {name: step(each, x, labels) for name, each in models.items()}
    for call in steps.values():
        call()  # qparams are chosen, gradients have their memory
    kept = {name: kept_bytes(each, x, labels) for name, each in models.items()}
    ms = medians(steps, rounds, clock)
    return [
        {
            "step": name,
            "ms": ms[name],
            "times float": ms[name] / ms["float"],
            "MB kept": kept[name] / 1e6,
            "times float's": kept[name] / kept["float"],
        }
        for name in models
    ]


def step(model: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return run


def kept_bytes(model: nn.Module, x: Tensor, labels: Tensor) -> int:
    """Bytes that a forward pass leaves allocated: what is kept for gradients, and the loss."""
    gc.collect()
    before = allocated()
    loss = nn.functional.cross_entropy(model(x), labels)
    kept = allocated() - before
    loss.backward()
    return kept


class _MallocInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t) for name in ("arena", "free", "_0", "maps", "mapped", "_1", "_2", "used", "_3", "_4")
    ]


def allocated() -> int:
    """Bytes that malloc has given out to this thread and that are not freed (glibc 2.33 or later)."""
    read = ctypes.CDLL(None).mallinfo2
    read.restype = _MallocInfo
    found = read()
    return found.used + found.mapped


def torch_ao(model: nn.Module, x: Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import get_default_qat_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_qat_fx

        return prepare_qat_fx(model, get_default_qat_qconfig_mapping("x86"), (x,))


if __name__ == "__main__":
    main()
