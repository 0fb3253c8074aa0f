"""Each convolution and linear layer of a network by itself: where the time of int8 inference goes.

For every distinct layer: fxquant's kernel, the same where the framework's brgemm multiplies (or does not, on a CPU with
AMX, where it is what runs), the framework's oneDNN operator, and two limits that no kernel can beat: what the products
take at the rate of ``vpdpbusd`` alone, and what a copy of as many bytes takes as the layer reads and writes.
Microseconds, medians; a layer counts as often as the network has it in the sum.

``--against`` names another checkout, with its kernels built. Then each convolution of fxquant takes turns with that of
the other checkout instead, on one instruction set after the other, and nothing else is measured. Both run as part of a
program, as in a model: no call of an operator and no new memory come between. ``--depthwise`` leaves out all layers
that are not depthwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from layer_turns import TurnsRow, geometric_mean, in_turns, serve
from multiply_rate import products_per_second, tile_products_per_second
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import interleaved_medians, machine
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, native_status, use_isa
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.runtime.program import Program
from fxquant.runtime.recording import Recording

MODELS = ("resnet50", "resnet18", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "googlenet")
X_ZERO_POINT = 3
PROGRAM = 16
"""With --against: images that a program convolves, one after the other or as batches."""
OTHER = "avx512_vnni" if native_status().cpu_isa == "brgemm" else "brgemm"
"""Of who multiplies large products, fxquant's loops or the framework's brgemm, the one that does not by itself."""


@dataclass(frozen=True)
class Layer:
    """A convolution, or a linear layer (kernel 0) of ``size`` rows, on an input of one batch."""

    depth: int
    channels: int
    kernel: int
    stride: int
    padding: int
    groups: int
    size: int
    columns: int

    @property
    def name(self) -> str:
        if not self.kernel:
            return f"linear {self.depth} > {self.channels}, {self.size} row{'' if self.size == 1 else 's'}"
        groups = "" if self.groups == 1 else " depthwise" if self.groups == self.depth else f" groups {self.groups}"
        stride = "" if self.stride == 1 else f" / {self.stride}"
        return f"{self.kernel}x{self.kernel}{stride}{groups} {self.depth} > {self.channels}, {self.size}"

    @property
    def is_depthwise(self) -> bool:
        return bool(self.kernel) and 1 < self.groups == self.depth == self.channels

    def module(self) -> nn.Conv2d | nn.Linear:
        if not self.kernel:
            return nn.Linear(self.depth, self.channels)
        walk = {"stride": self.stride, "padding": self.padding, "groups": self.groups}
        return nn.Conv2d(self.depth, self.channels, self.kernel, **walk)


def layers_of(name: str) -> Counter[Layer]:
    """The distinct layers of a network on images of 224 pixels, attention taken apart, and how often each occurs."""
    more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model, found = getattr(torchvision.models, name)(**more).eval(), Counter()

    def note(module: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        (x,) = inputs
        if isinstance(module, nn.Linear):
            rows = x.numel() // module.in_features
            found[Layer(module.in_features, module.out_features, 0, 1, 0, 1, rows, 1)] += 1
        elif isinstance(module, nn.Conv2d):
            walk = (module.kernel_size[0], module.stride[0], int(module.padding[0]), module.groups)
            found[Layer(module.in_channels, module.out_channels, *walk, *x.shape[2:])] += 1

    image = torch.zeros(1, 3, 224, 224)
    traced = fxq.prepare(model, image).graph_module
    for module in traced.modules():
        module.register_forward_hook(note)
    with torch.no_grad():
        traced(image)
    return found


@dataclass
class Row:
    """One layer of one network: microseconds."""

    layer: str
    count: int
    native: float
    other: float | None
    """The same with the instruction set ``OTHER``."""
    onednn: float | None
    products: float | None
    copy: float


def measure(layer: Layer, count: int, batch: int, rate: float | None, rounds: int) -> Row:
    calls, products, traffic = contestants(layer, batch)
    source = torch.zeros(traffic // 2, dtype=torch.uint8)
    target = torch.zeros_like(source)
    ms = interleaved_medians({**calls, "copy": lambda: target.copy_(source)}, rounds)
    limit = None if rate is None else 1e6 * products / rate
    other, onednn = (1e3 * ms[name] if name in ms else None for name in ("other", "onednn"))
    return Row(layer.name, count, 1e3 * ms["native"], other, onednn, limit, 1e3 * ms["copy"])


def contestants(layer: Layer, batch: int) -> tuple[dict[str, Callable[[], Tensor]], int, int]:
    """What is timed, the products of a call, and the bytes that it reads and writes."""
    module = layer.module()
    weight, epilogue = operands(layer, module)
    products = weight[0].numel()
    x_qparams = (torch.uint8, X_ZERO_POINT)
    if isinstance(module, nn.Linear):
        x = torch.randint(0, 256, (batch, layer.size, layer.depth), dtype=torch.uint8)
        makers = {
            "native": lambda: NativeLinear(weight, *x_qparams, epilogue),
            "onednn": lambda: onednn_linear(weight, epilogue),
        }
    else:
        x = images(layer, batch)
        where = (ConvGeometry.of(module), epilogue)
        makers = {
            "native": lambda: NativeConv(weight, *x_qparams, *where),
            "onednn": lambda: onednn_conv(weight, *where, list(x.shape)),
        }
    if not torch.cpu._is_vnni_supported():  # it saturates there
        del makers["onednn"]
    runs = {name: make() for name, make in makers.items()}
    results = runs["native"](x).numel()
    calls = {name: (lambda run=run: run(x)) for name, run in runs.items()}
    if OTHER in available_isas():
        calls["other"] = lambda: with_other(runs["native"], x)
    return calls, products * results, x.numel() + weight.numel() + results


def operands(layer: Layer, module: nn.Conv2d | nn.Linear) -> tuple[Tensor, Epilogue]:
    """A random weight, and an epilogue by which results spread over the quantization range."""
    weight = torch.randint(-128, 128, module.weight.shape, dtype=torch.int8)
    scale = torch.full((layer.channels,), 1 / (73 * 64 * weight[0].numel() ** 0.5))
    return weight, Epilogue(
        x_scale=0.02, weight_scale=scale, bias=torch.zeros(layer.channels),
        y_scale=0.02, y_zero_point=120, quant_min=0, quant_max=255, dtype=torch.uint8,
    )  # fmt: skip


def images(layer: Layer, batch: int) -> Tensor:
    x = torch.randint(0, 256, (batch, layer.depth, layer.size, layer.columns), dtype=torch.uint8)
    return x.contiguous(memory_format=torch.channels_last)


def onednn_linear(weight: Tensor, epilogue: Epilogue) -> Callable[[Tensor], Tensor]:
    """A linear layer of uint8 on the framework's operator."""
    packed, absent = torch.ops.onednn.qlinear_prepack(weight, None), torch.zeros(len(weight), dtype=torch.int32)
    scales, output = (packed, epilogue.weight_scale, absent), (epilogue.y_scale, epilogue.y_zero_point, epilogue.dtype)
    arguments = (epilogue.x_scale, X_ZERO_POINT, *scales, epilogue.bias, *output, "none", [], "")
    return lambda x: torch.ops.onednn.qlinear_pointwise.default(x, *arguments)


def onednn_conv(weight: Tensor, geometry: ConvGeometry, epilogue: Epilogue, shape: list[int]) -> Callable[..., Tensor]:
    """A convolution of uint8 [N, C, H, W] on the framework's operator, its weight packed for this shape."""
    walk = (list(geometry.stride), list(geometry.before), list(geometry.dilation), geometry.groups)
    x_qparams, absent = (epilogue.x_scale, X_ZERO_POINT), torch.zeros(len(weight), dtype=torch.int32)
    packed = torch.ops.onednn.qconv_prepack(weight, epilogue.weight_scale, *x_qparams, *walk, shape)
    output = (epilogue.y_scale, epilogue.y_zero_point, epilogue.dtype, "none", [], "")
    arguments = (*x_qparams, packed, epilogue.weight_scale, absent, epilogue.bias, *walk, *output)
    return lambda x: torch.ops.onednn.qconv_pointwise.default(x, *arguments)


def with_other(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with use_isa(OTHER):
        return run(x)


def table(rows: list[Row]) -> Iterator[list[object]]:
    for row in rows:
        limit = max(row.products or 0.0, row.copy)
        ratio = None if row.onednn is None else row.onednn / row.native
        yield [
            row.layer,
            row.count,
            row.native,
            row.other,
            row.onednn,
            ratio,
            row.products,
            row.copy,
            limit / row.native,
        ]


def total(rows: list[Row]) -> Row:
    def summed(values: list[float | None]) -> float | None:
        known = [row.count * value for row, value in zip(rows, values, strict=True) if value is not None]
        return sum(known) if known else None

    native, copy = (sum(row.count * value for row, value in zip(rows, values, strict=True)) for values in (
        [row.native for row in rows], [row.copy for row in rows]
    ))  # fmt: skip
    other, onednn, products = (summed([getattr(row, name) for row in rows]) for name in ("other", "onednn", "products"))
    return Row("all", sum(row.count for row in rows), native, other, onednn, products, copy)


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the table of both checkouts for each network, number of threads, batch and instruction set."""
    results, checkouts = [], (Path(options.against), Path(__file__).resolve().parent.parent)
    for name in options.models:
        layers = {layer: count for layer, count in layers_of(name).items() if layer.kernel}
        layers = {layer: count for layer, count in layers.items() if layer.is_depthwise or not options.depthwise}
        for threads, batch, isa in itertools.product(options.threads, options.batch, options.isa):
            settings = {"threads": threads, "batch": batch, "isa": isa}
            rows = list(in_turns(Path(__file__), checkouts, layers, settings, options.rounds))
            head = f"{name}, batch {batch}, threads {threads}, {isa}"
            headers = (head, "count", "before", "now", "times faster")
            print(tabulate([list(asdict(row).values()) for row in rows], headers=headers, floatfmt=".2f"))
            print(f"geometric mean {geometric_mean(rows):.2f}, least {least(rows):.2f}", end="\n\n", flush=True)
            results.append({"model": name, **settings, "rows": [asdict(row) for row in rows]})
    every = [TurnsRow(**row) for result in results for row in result["rows"]]
    print(f"all: geometric mean {geometric_mean(every):.2f}, least {least(every):.2f}")
    return results


def least(rows: list[TurnsRow]) -> float:
    return min(row.faster for row in rows)


def serve_layers() -> None:
    """Answer as one of both processes of ``compare``."""
    settings: dict[str, Any] = {}

    def prepare(given: dict[str, Any]) -> None:
        settings.update(given)
        torch.set_num_threads(given["threads"])
        stack.enter_context(use_isa(given["isa"]))

    def make(fields: dict[str, Any]) -> tuple[Callable[[], object], int]:
        torch.manual_seed(0)
        layer, times = Layer(**fields), max(1, PROGRAM // settings["batch"])
        module, x = layer.module(), images(layer, settings["batch"])
        weight, epilogue = operands(layer, module)
        conv = NativeConv(weight, torch.uint8, X_ZERO_POINT, ConvGeometry.of(module), epilogue)
        program = recorded(conv, x, times)
        return lambda: program([x]), times

    with torch.no_grad(), ExitStack() as stack:
        serve(prepare, make)


def recorded(conv: NativeConv, x: Tensor, times: int) -> Program:
    """A program that convolves so many times. Results are temporary; a few values of the last one are copied out."""
    recording = Recording()
    recording.add_input(x)

    def call() -> Tensor:
        for _ in range(times):
            y = conv(x)
        return y[:, :2, :1, :2].contiguous()

    return recording.finish([recording.attempt(call)])


HEADERS = ("count", "native", OTHER, "oneDNN", "times faster", "products", "copy", "limit / native")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of torchvision.models")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--against", metavar="PATH", help="another checkout, whose kernels take turns with these")
    parser.add_argument("--isa", nargs="+", default=[native_status().cpu_isa], help="with --against: instruction sets")
    parser.add_argument("--depthwise", action="store_true", help="with --against: depthwise layers alone")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    if options.serve:
        serve_layers()
        return
    if options.against:
        print("\n".join(f"{key}: {value}" for key, value in machine().items()))
        results = compare(options)
        if options.json:
            Path(options.json).write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
        return
    on_tiles = native_status().cpu_isa in ("amx", "brgemm")  # the latter where the CPU has tiles
    rate = (tile_products_per_second() if on_tiles else None) or products_per_second()
    print("\n".join(f"{key}: {value}" for key, value in machine().items()))
    print(f"products: {'unknown' if rate is None else f'{rate / 1e9:.0f} 10^9 per second and thread'}")
    results = []
    for name in options.models:
        layers = layers_of(name)
        for threads in options.threads:
            torch.set_num_threads(threads)
            for batch in options.batch:
                of_all = None if rate is None else rate * threads
                rows = [measure(layer, count, batch, of_all, options.rounds) for layer, count in layers.items()]
                rows.append(total(rows))
                head = f"{name}, batch {batch}, threads {threads}"
                print(tabulate(table(rows), headers=(head, *HEADERS), floatfmt=".2f"), end="\n\n", flush=True)
                about = {"model": name, "batch": batch, "threads": threads}
                results.append({**about, "rows": [asdict(row) for row in rows]})
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
