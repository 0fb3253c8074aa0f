"""Fake quantization at the speed of memory: fxquant's modules and operators against torch's, in units of ``clone``.

One process, contestants in turns, medians. ``clone`` is ``torch.clone`` of the same tensor; small tensors also show the
microseconds beyond it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from fxquant import kernels
from fxquant.demo.measure import interleaved_medians, machine
from fxquant.fake_quantize import FusedMovingAvgObsFakeQuantize

SIZES = {"0.8 MB": (16, 64, 14, 14), "13 MB": (16, 64, 56, 56), "51 MB": (64, 64, 56, 56)}
"""Of float32 [N, C, H, W]; bfloat16 tensors have the same number of bytes, so twice the images."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Work = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="3 rounds of fp32, contiguous: to see that it runs")
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    dtypes = ["fp32"] if options.quick else list(DTYPES)
    layouts = ["contiguous"] if options.quick else list(LAYOUTS)
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    results = []
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for size in options.sizes:
            for dtype in dtypes:
                for layout in layouts:
                    rows = measure(size, dtype, layout, rounds)
                    results += [{"threads": threads, "size": size, "dtype": dtype, "layout": layout, **r} for r in rows]
                    print(f"\n{threads} threads, {size}, {dtype}, {layout}: clone {rows[0]['clone us']} us")
                    shown = [{key: value for key, value in row.items() if key != "clone us"} for row in rows]
                    print(tabulate(shown, headers="keys"), flush=True)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": about, "rounds": rounds, "results": results}, indent=1) + "\n"
        )


def measure(size: str, dtype: str, layout: str, rounds: int) -> list[dict[str, Any]]:
    """One row for each kind of work."""
    n, *rest = SIZES[size]
    shape = (n * 2 if dtype == "bf16" else n, *rest)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = x.to(DTYPES[dtype], memory_format=LAYOUTS[layout])
    grad = torch.randn_like(x)
    rows = []
    for name, (ours, theirs) in contests(x, grad).items():
        try:
            theirs()
        except RuntimeError as error:  # some of torch's kernels take float32 only
            work: Work = {"clone": x.clone, "ours": ours}
            refused = str(error).splitlines()[0][:40]
        else:
            work = {"clone": x.clone, "ours": ours, "theirs": theirs}
            refused = ""
        ms = interleaved_medians(work, rounds)
        rows.append(
            {
                "work": name,
                "us": round(ms["ours"] * 1e3),
                "of clone": round(ms["ours"] / ms["clone"], 2),
                "beyond clone, us": round((ms["ours"] - ms["clone"]) * 1e3),
                "times faster than torch": refused or round(ms["theirs"] / ms["ours"], 1),
                "clone us": round(ms["clone"] * 1e3),
            }
        )
    return rows


def contests(x: Tensor, grad: Tensor) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Name of the work -> how we do it, how torch does it."""
    channels = x.shape[1]
    scale, zero_point = torch.tensor([0.02]), torch.tensor([5], dtype=torch.int32)
    scales, zero_points = torch.full((channels,), 0.02), torch.zeros(channels, dtype=torch.int32)
    wanting = x.clone().requires_grad_()
    tensor, channel = (scale, zero_point, -128, 127), (scales, zero_points, 1, -128, 127)
    learned = scale.clone().requires_grad_(), zero_point.float().requires_grad_()
    learned_channels = scales.clone().requires_grad_(), zero_points.float().requires_grad_()

    def forward(function: Callable[..., Tensor], *arguments: Any) -> Callable[[], Any]:
        return lambda: function(x, *arguments)

    def trained(function: Callable[..., Tensor], *arguments: Any) -> Callable[[], Any]:
        def run() -> None:
            wanting.grad = None
            function(wanting, *arguments).backward(grad)

        return run

    ours, theirs = kernels, torch
    return {
        "forward, per tensor": (
            forward(ours.fake_quantize_per_tensor_affine, *tensor),
            forward(theirs.fake_quantize_per_tensor_affine, *tensor),
        ),
        "forward, per channel": (
            forward(ours.fake_quantize_per_channel_affine, *channel),
            forward(theirs.fake_quantize_per_channel_affine, *channel),
        ),
        "forward + backward, per tensor": (
            trained(ours.fake_quantize_per_tensor_affine, *tensor),
            trained(theirs.fake_quantize_per_tensor_affine, *tensor),
        ),
        "forward + backward, per channel": (
            trained(ours.fake_quantize_per_channel_affine, *channel),
            trained(theirs.fake_quantize_per_channel_affine, *channel),
        ),
        "learnable forward + backward, per tensor": (
            trained(ours.fake_quantize_learnable_per_tensor_affine, *learned, -128, 127, 1.0),
            trained(theirs._fake_quantize_learnable_per_tensor_affine, *learned, -128, 127, 1.0),
        ),
        "learnable forward + backward, per channel": (
            trained(ours.fake_quantize_learnable_per_channel_affine, *learned_channels, 1, -128, 127, 1.0),
            trained(theirs._fake_quantize_learnable_per_channel_affine, *learned_channels, 1, -128, 127, 1.0),
        ),
        "fused observer + fake-quantize": (
            forward(FusedMovingAvgObsFakeQuantize()),
            forward(_their_fused()),
        ),
    }


def _their_fused() -> Callable[[Tensor], Tensor]:
    from torch.ao.quantization.fake_quantize import FusedMovingAvgObsFakeQuantize as Theirs

    return Theirs()


if __name__ == "__main__":
    main()
