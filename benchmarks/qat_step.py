"""A training step (forward, backward, SGD): the float model, fxquant's ``prepare_qat``, and torch.ao's.

One process, contestants in turns, medians. Bytes are those that autograd keeps for the backward pass: distinct
storages, the model's own parameters left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import interleaved_medians, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--sides", type=int, nargs="+", default=[112, 64])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="one round of 64 x 64: to see that it runs")
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    sides, rounds = ([64], 1) if options.quick else (options.sides, options.rounds)
    torch.set_num_threads(options.threads)
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    results = []
    for side in sides:
        rows = measure(options.model, options.batch, side, rounds)
        results += [{"side": side, **row} for row in rows]
        print(f"\n{options.model}, batch {options.batch}, {side} x {side}")
        print(tabulate(rows, headers="keys", floatfmt=".2f"), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, "rounds": rounds, "results": results}, indent=1))


def measure(name: str, batch: int, side: int, rounds: int) -> list[dict[str, object]]:
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
    kept = {name: saved_bytes(each, x, labels) for name, each in models.items()}
    ms = interleaved_medians(steps, rounds)
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


def saved_bytes(model: nn.Module, x: Tensor, labels: Tensor) -> int:
    """Bytes of distinct storages that the graph of one step holds, the model's parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        alive.append(storage)  # so that no address is used twice
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    return sum(kept.values())


def torch_ao(model: nn.Module, x: Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import get_default_qat_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_qat_fx

        return prepare_qat_fx(model, get_default_qat_qconfig_mapping("x86"), (x,))


if __name__ == "__main__":
    main()
