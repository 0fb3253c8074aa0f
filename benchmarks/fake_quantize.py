"""Fake quantization at the speed of memory: fxquant's modules and operators against torch's, in units of ``clone``.

One process, contestants in turns, medians. ``clone`` is ``torch.clone`` of the same tensor. Each row says what it may
take (``target``), what it takes, whether that is met, and how many bytes it moves in a second; the bytes are those that
it must read and write, and those of ``copy`` (into memory that is there already) are the measure.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from clocks import add_clock, medians
from tabulate import tabulate
from torch import Tensor

from fxquant import kernels
from fxquant.demo.measure import machine
from fxquant.fake_quantize import FusedMovingAvgObsFakeQuantize

SIZES = {"0.8 MB": (16, 64, 14, 14), "13 MB": (16, 64, 56, 56), "51 MB": (64, 64, 56, 56)}
"""Of float32 [N, C, H, W]; bfloat16 tensors have the same number of bytes, so twice the images."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
APART = ("clone us", "copy GB/s")
"""What the head of a table says."""
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Work = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Target:
    """At most ``clones`` times as long as ``clone``, and some microseconds; and so many times faster than torch."""

    clones: float
    microseconds: float = 0.0
    faster: float | None = None

    def limit(self, clone: float) -> float:
        return self.clones * clone + self.microseconds

    def __str__(self) -> str:
        extra = f" + {self.microseconds:.0f} us" if self.microseconds else ""
        faster = f", {self.faster:.0f} x torch" if self.faster else ""
        return f"{self.clones:g} clone{extra}{faster}"


TARGETS: dict[str, dict[str, Target]] = {
    "forward": {"0.8 MB": Target(1, 40), "13 MB": Target(1.25, faster=12), "51 MB": Target(1.2)},
    "forward + backward": {"0.8 MB": Target(3, 100), "13 MB": Target(2.6, faster=12), "51 MB": Target(3.5)},
    "learnable forward + backward": {"0.8 MB": Target(4, 120), "13 MB": Target(3.0, faster=20), "51 MB": Target(4.5)},
    "fused observer + fake-quantize": {"0.8 MB": Target(2, 60), "13 MB": Target(1.8, faster=8), "51 MB": Target(2)},
}
TENSORS_MOVED = {
    "forward": 2.0,
    "forward + backward": 4.0,  # and the mask twice
    "learnable forward + backward": 5.0,
    "fused observer + fake-quantize": 3.0,
}
"""How often the tensor's bytes are read or written."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="3 rounds of fp32, contiguous: to see that it runs")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--json", help="also write everything to this file")
    add_clock(parser)
    options = parser.parse_args()
    keep_freed_memory()
    rounds = 3 if options.quick else options.rounds
    dtypes = ["fp32"] if options.quick else options.dtypes
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
                    rows = measure(size, dtype, layout, rounds, options.clock)
                    results += [{"threads": threads, "size": size, "dtype": dtype, "layout": layout, **r} for r in rows]
                    about_row = f"clone {rows[0]['clone us']} us, copy {rows[0]['copy GB/s']} GB/s"
                    print(f"\n{threads} threads, {size}, {dtype}, {layout}: {about_row}")
                    shown = [{key: value for key, value in row.items() if key not in APART} for row in rows]
                    print(tabulate(shown, headers="keys"), flush=True)
    met = sum(row["met"] == "yes" for row in results)
    print(f"\n{met} of {len(results)} rows reach their target")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": about, "rounds": rounds, "results": results}, indent=1) + "\n"
        )


def keep_freed_memory() -> None:
    """Let malloc reuse what is freed, up to 32 MB, as it does in a process that has trained for a while.

    Before, it gives such memory back to the system, and page faults count for whoever happens to have them.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def measure(size: str, dtype: str, layout: str, rounds: int, clock: str) -> list[dict[str, Any]]:
    """One row for each kind of work."""
    n, *rest = SIZES[size]
    shape = (n * 2 if dtype == "bf16" else n, *rest)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = x.to(DTYPES[dtype], memory_format=LAYOUTS[layout])
    grad = torch.randn_like(x)
    rows = []
    there = torch.empty_like(x)
    copy_ms = medians({"copy": lambda: there.copy_(x)}, rounds, clock)["copy"]
    copied = round(2 * x.nbytes / copy_ms / 1e6, 1)
    for name, (ours, theirs) in contests(x, grad).items():
        try:
            theirs()
        except RuntimeError as error:  # some of torch's kernels take float32 only
            work: Work = {"clone": x.clone, "ours": ours}
            refused = str(error).splitlines()[0][:40]
        else:
            work = {"clone": x.clone, "ours": ours, "theirs": theirs}
            refused = ""
        us = {name: 1e3 * ms for name, ms in medians(work, rounds, clock).items()}
        kind = name.partition(",")[0]
        target = TARGETS[kind][size]
        faster = None if refused else us["theirs"] / us["ours"]
        in_time = us["ours"] <= target.limit(us["clone"])
        fast = target.faster is None or faster is None or faster >= target.faster
        masks = 2 * x.numel() if kind == "forward + backward" else 0
        rows.append(
            {
                "work": name,
                "us": round(us["ours"]),
                "of clone": round(us["ours"] / us["clone"], 2),
                "target": str(target),
                "may take, us": round(target.limit(us["clone"])),
                "met": "yes" if in_time and fast else "no" if not in_time else "no: torch",
                "times faster than torch": refused or round(us["theirs"] / us["ours"], 1),
                "GB/s": round((TENSORS_MOVED[kind] * x.nbytes + masks) / us["ours"] / 1e3, 1),
                "clone us": round(us["clone"]),
                "copy GB/s": copied,
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
