"""Linear layers with a weight of 4 or 8 bits on one row of floats, against a copy of as many bytes, and torchao's.

python benchmarks/weight_only.py --threads 1
All take turns in one process. Before each call a block larger than the last cache is written, so that weights come from
memory. The copy moves as many bytes as fxquant's packed weight and its scales have. torchao is left out where it is not
installed. ``--rows 64`` multiplies 64 rows (a prompt); there the copy says nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import machine

FLUSHED = 96 << 20
"""Bytes written between calls: several times the last cache of one processor."""

Run = Callable[[], object]


def ours(layer: nn.Linear, x: Tensor, bits: int, group_size: int | None) -> tuple[Run, int]:
    """The layer as ``convert`` makes it, and the bytes of its packed weight and scales."""
    model = nn.Sequential(layer).eval()
    int8 = fxq.convert(fxq.prepare(model, x, fxq.weight_only_qconfig(bits=bits, group_size=group_size)))
    module: Any = int8.get_submodule("0")
    module(x)
    values, scale, *_ = module.packed().arguments
    return (lambda: module(x)), values.nbytes + scale.nbytes


def torchao_layers(layer: nn.Linear, x: Tensor) -> dict[str, Run]:
    """torchao's weight-only layers, which run on a CPU; none where it is not installed."""
    try:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError:
        return {}
    found: dict[str, Run] = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        configs = {"int4 g32": PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False)}
        for label, config in {**configs, "int8": Int8WeightOnlyConfig(set_inductor_config=False)}.items():
            twin = nn.Linear(layer.in_features, layer.out_features, dtype=dtype)
            twin.load_state_dict({key: value.to(dtype) for key, value in layer.state_dict().items()})
            model, given = nn.Sequential(twin).eval(), x.to(dtype)
            quantize_(model, config)
            found[f"torchao {label} {name}"] = lambda model=model, given=given: model(given)
    return found


def measured(contestants: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of a call of each, cold, in turns: the lower quartile, since another process disturbs whole turns."""
    block = torch.zeros(FLUSHED, dtype=torch.uint8)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    for _ in range(rounds):
        for name, run in contestants.items():
            block.add_(1)
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles([*each, *each], n=4)[0] for name, each in times.items()}


def rows_of(in_features: int, out_features: int, rows: int, rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    layer, x = nn.Linear(in_features, out_features), torch.randn(rows, in_features)
    contestants: dict[str, Run] = {"torch float32": lambda: layer(x)}
    sizes: dict[str, int] = {"torch float32": layer.weight.nbytes}
    for bits, group_size in ((4, 32), (4, 64), (4, 128), (4, None), (8, 32), (8, None)):
        if group_size is not None and in_features % group_size:
            continue
        name = f"fxquant int{bits} {'per channel' if group_size is None else f'g{group_size}'}"
        contestants[name], size = ours(layer, x, bits, group_size)
        source = torch.randint(0, 256, (size,), dtype=torch.uint8)
        target = source.clone()
        contestants[f"copy {name}"] = lambda source=source, target=target: target.copy_(source)
        sizes[name] = size
    peers = torchao_layers(layer, x)
    contestants.update(peers)
    seconds = measured(contestants, rounds)
    return [
        {
            "layer": f"{in_features}x{out_features}",
            "who": name,
            "ms": 1e3 * took,
            "GB/s": sizes[name] / took / 1e9 if name in sizes else None,
            "of a copy": seconds[f"copy {name}"] / took if f"copy {name}" in seconds else None,
        }
        for name, took in seconds.items()
        if not name.startswith("copy ")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=["4096x4096", "11008x4096"], help="in_features x out_features")
    parser.add_argument("--rows", type=int, default=1, help="of the input")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", module="torchao")

    found: list[dict[str, Any]] = []
    with torch.inference_mode():
        for layer in options.layers:
            in_features, out_features = map(int, layer.split("x"))
            found += rows_of(in_features, out_features, options.rows, options.rounds)
    print(tabulate(found, headers="keys", floatfmt=".2f"))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
