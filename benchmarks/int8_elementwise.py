"""int8 operators that are no convolution, against the framework's own on its quantized dtypes: interleaved medians.

The shapes are those of ResNet-50, MobileNetV3, GoogLeNet, DenseNet and Inception at 224 (299) pixels, channels_last.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor

from fxquant import kernels
from fxquant.demo.measure import interleaved_medians, machine

A, B, Y = (0.1, 3), (0.07, 5), (0.2, 7)
"""Scale and zero point of both inputs and of the result."""
FULL = (0, 255)


@dataclass(frozen=True)
class Case:
    """One operator on one shape: ours, the framework's, and how many bytes it must read and write at least."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    traffic: int


def image(batch: int, channels: int, size: int) -> Tensor:
    q = torch.randint(0, 256, (batch, channels, size, size), dtype=torch.uint8)
    return q.contiguous(memory_format=torch.channels_last)


def framework(q: Tensor, qparams: tuple[float, int]) -> Tensor:
    """The same integers in the framework's quantized dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch._make_per_tensor_quantized_tensor(q, *qparams)


def cases(batch: int) -> Iterator[Case]:
    for channels, size in ((256, 56), (512, 28), (1024, 14), (2048, 7)):
        yield add(batch, channels, size)
    for channels, size in ((72, 28), (960, 7)):
        yield gate(batch, channels, size)
    for all_qparams in ((A, A, A, A), (A, B, Y, B)):
        yield cat(batch, (128, 192, 96, 64), 28, all_qparams)
    yield max_pool(batch, 64, 112, 3, 2)
    yield max_pool(batch, 192, 28, 3, 1)
    yield avg_pool(batch, 128, 56, 2, 2, 0)
    yield avg_pool(batch, 192, 35, 3, 1, 1)
    yield global_pool(batch, 2048, 7)
    yield mean(batch, 1280, 7)


def add(batch: int, channels: int, size: int) -> Case:
    a, b = image(batch, channels, size), image(batch, channels, size)
    theirs = framework(a, A), framework(b, B)
    return Case(
        f"add + ReLU {channels} x {size} x {size}",
        lambda: kernels.add(a, *A, b, *B, *Y, Y[1], 255),
        lambda: torch.ops.quantized.add_relu(*theirs, *Y),
        3 * a.numel(),
    )


def gate(batch: int, channels: int, size: int) -> Case:
    a, b = image(batch, channels, size), image(batch, channels, 1)
    theirs = framework(a, A), framework(b, B)
    return Case(
        f"mul {channels} x {size} x {size} by {channels} x 1 x 1",
        lambda: kernels.mul(a, *A, b, *B, *Y, *FULL),
        lambda: torch.ops.quantized.mul(*theirs, *Y),
        2 * a.numel(),
    )


def cat(batch: int, channels: tuple[int, ...], size: int, all_qparams: tuple[tuple[float, int], ...]) -> Case:
    parts = [image(batch, c, size) for c in channels]
    theirs = [framework(q, qparams) for q, qparams in zip(parts, all_qparams, strict=True)]
    scales, zero_points = [scale for scale, _ in all_qparams], [zero_point for _, zero_point in all_qparams]
    what = "the same qparams" if len(set(all_qparams)) == 1 else "different qparams"
    return Case(
        f"cat {' + '.join(map(str, channels))} x {size} x {size}, {what}",
        lambda: kernels.cat(parts, scales, zero_points, 1, *A, *FULL),
        lambda: torch.ops.quantized.cat(theirs, 1, *A),
        2 * sum(q.numel() for q in parts),
    )


def max_pool(batch: int, channels: int, size: int, kernel: int, stride: int) -> Case:
    x = image(batch, channels, size)
    theirs = framework(x, A)
    return Case(
        f"max pool {kernel} x {kernel} / {stride}, {channels} x {size} x {size}",
        lambda: kernels.max_pool2d(x, [kernel], [stride], [1], [1], False),
        lambda: torch.max_pool2d(theirs, kernel, stride, 1),
        x.numel() + x.numel() // stride**2,
    )


def avg_pool(batch: int, channels: int, size: int, kernel: int, stride: int, padding: int) -> Case:
    x = image(batch, channels, size)
    theirs = framework(x, A)
    return Case(
        f"average pool {kernel} x {kernel} / {stride}, {channels} x {size} x {size}",
        lambda: kernels.avg_pool2d(x, [kernel], [stride], [padding], False, True, None, *A, *A, *FULL),
        lambda: torch._C._nn.avg_pool2d(theirs, kernel, stride, padding),
        x.numel() + x.numel() // stride**2,
    )


def global_pool(batch: int, channels: int, size: int) -> Case:
    x = image(batch, channels, size)
    theirs = framework(x, A)
    return Case(
        f"global average pool {channels} x {size} x {size}",
        lambda: kernels.adaptive_avg_pool2d(x, [1, 1], *A, *A, *FULL),
        lambda: torch._C._nn.adaptive_avg_pool2d(theirs, 1),
        x.numel(),
    )


def mean(batch: int, channels: int, size: int) -> Case:
    x = image(batch, channels, size)
    theirs = framework(x, A)
    return Case(
        f"mean over {size} x {size} of {channels}",
        lambda: kernels.mean(x, [2, 3], False, *A, *A, *FULL),
        lambda: theirs.mean((2, 3)),
        x.numel(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("\n".join(f"{key}: {value}" for key, value in machine().items()))
    for batch in options.batch:
        rows = []
        for case in cases(batch):
            ms = interleaved_medians({"ours": case.ours, "theirs": case.theirs}, options.rounds)
            ours, theirs = ms["ours"], ms["theirs"]
            rows.append([case.name, ours * 1e3, theirs * 1e3, theirs / ours, case.traffic / ours / 1e6])
        headers = [
            f"batch {batch}, {options.threads} threads",
            "ours, us",
            "framework, us",
            "times faster",
            "ours, GB/s",
        ]
        print(tabulate(rows, headers=headers, floatfmt=("", ".1f", ".1f", ".2f", ".1f")), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
