"""What ``reconstruct`` gains: MobileNetV2 with its real weights, and a small residual net on Fashion-MNIST.

python benchmarks/reconstruct.py --json results.json                 # MobileNetV2, half an hour on one core
python benchmarks/reconstruct.py --net fashion --weights fashion.pt  # trains the net first where the file is missing
Agreement with float is that of answers on 156 images or 10,000 pictures; intervals are of 95 %. W4A4 of MobileNetV2 has
8 bits at both ends of the model; with ``stream`` also where a block ends, and so in the values that are added.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from real_classifiers import mobilenet_v2_task
from real_task import Task, outputs
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.samples.fashion import ResidualNet, fashion_mnist

PER_TENSOR = fxq.MinMaxObserver.with_args(bits=4, dtype=torch.int8, qscheme="per_tensor_symmetric")
PICTURES, EPOCHS = 1024, 6


@dataclass(frozen=True)
class Setting:
    """A row of the table."""

    name: str
    mapping: Callable[[nn.Module], fxq.QConfigMapping]


def mobilenet_v2(options: argparse.Namespace) -> tuple[Task, list[Setting]]:
    task = mobilenet_v2_task()
    crops = torch.cat(list(task.calibration))[: options.crops].split(16)
    settings = [
        Setting("W4A8", lambda model: fxq.low_bit_qconfig(4, 8, ends=None)),
        Setting("W4A4", lambda model: fxq.low_bit_qconfig(4, 4)),
        Setting("W4A4 stream", with_stream),
    ]
    return replace(task, calibration=crops), settings


def with_stream(model: nn.Module) -> fxq.QConfigMapping:
    """4 bits, but for what the last layer of a block gives, and for sums: these have 8."""
    mapping = fxq.low_bit_qconfig(4, 4)
    assert mapping.global_qconfig is not None
    wide = replace(mapping.global_qconfig, activation=fxq.low_bit_qconfig(4, 8).global_qconfig.activation)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and name.startswith("features") and name.endswith((".conv.1", ".conv.2")):
            mapping.set_module_name(name, wide)
    return mapping.set_object_type(torch.add, wide)


def fashion(options: argparse.Namespace) -> tuple[Task, list[Setting]]:
    images, labels = fashion_mnist("train")
    model = ResidualNet()
    if options.weights is not None and options.weights.exists():
        model.load_state_dict(torch.load(options.weights, weights_only=True))
    else:
        train(model, images, labels, options.epochs)
        if options.weights is not None:
            torch.save(model.state_dict(), options.weights)
    test, answers = (part[: options.images] for part in fashion_mnist("test"))

    def right(y: Tensor) -> float:
        return 100 * float((y.argmax(1) == answers).float().mean())

    def of_one_scale(model: nn.Module) -> fxq.QConfigMapping:
        mapping = fxq.low_bit_qconfig(4, 4, ends=None)
        assert mapping.global_qconfig is not None
        return mapping.set_global(replace(mapping.global_qconfig, weight=PER_TENSOR))

    settings = [
        Setting("W4A4 per tensor", of_one_scale),
        Setting("W2A8", lambda model: fxq.low_bit_qconfig(2, 8, ends=None)),
    ]
    pictures = images[: options.pictures].split(128)
    task = Task("Fashion-MNIST", "right, %", "", model.eval(), pictures, test.split(500), right, lambda y: y.argmax(1))
    return task, settings


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, batch: int = 128) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = len(images) // batch
    if epochs < 1:
        return
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=epochs * steps)
    for _ in range(epochs):
        for picked in torch.randperm(len(images))[: steps * batch].split(batch):
            optimizer.zero_grad()
            cross_entropy(model(images[picked]), labels[picked]).backward()
            optimizer.step()
            schedule.step()


def quality(task: Task, prepared: fxq.Quantizer, expected: Tensor) -> dict[str, Any]:
    given = outputs(fxq.convert(prepared), task.batches)
    assert task.decide is not None
    same = float((task.decide(given) == task.decide(expected)).float().mean())
    sqnr = 10 * math.log10(float(expected.square().sum() / (given - expected).square().sum()))
    return {
        "agreement": round(same, 4),
        "±": round(1.96 * math.sqrt(same * (1 - same) / len(given)), 4),
        "SQNR, dB": round(sqnr, 2),
        task.metric: round(task.score(given), 2),
    }


def rows_of(task: Task, setting: Setting, expected: Tensor, options: argparse.Namespace) -> list[dict[str, Any]]:
    prepared = fxq.prepare(task.model, task.calibration[0], setting.mapping(task.model))
    before = ""
    if options.equalize:
        prepared, before = fxq.equalize(prepared, task.calibration, progress=options.progress), "equalized, "
    fxq.calibrate(prepared, task.calibration, progress=False)
    rows = [
        {"setting": setting.name, "weights": f"{before}nearest", **quality(task, prepared, expected), "seconds": 0.0}
    ]
    wall, cpu = time.perf_counter(), time.process_time()
    learned = fxq.reconstruct(
        prepared, task.calibration, iterations=options.iterations, batch=options.batch, progress=options.progress
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(learned.reconstruction, flush=True)
    found = {"setting": setting.name, "weights": f"{before}reconstruct", **quality(task, learned, expected)}
    return [*rows, {**found, "seconds": round(wall, 1), "processor seconds": round(cpu, 1)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=("mobilenet", "fashion"), default="mobilenet")
    parser.add_argument("--settings", nargs="*", help="names of rows; without it, all")
    parser.add_argument("--equalize", action="store_true", help="channels between layers, before calibrating")
    parser.add_argument("--iterations", type=int, default=250)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--crops", type=int, default=96)
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--images", type=int, default=10_000, help="of the test, for Fashion-MNIST")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--weights", type=Path, help="of the small net; where there are none, to write to")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    task, settings = {"mobilenet": mobilenet_v2, "fashion": fashion}[options.net](options)
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        expected = outputs(task.model, task.batches)
    for setting in settings:
        if options.settings and setting.name not in options.settings:
            continue
        rows += rows_of(task, setting, expected, options)
        print(tabulate(rows, headers="keys"), flush=True)
        if options.json is not None:
            data = {"task": task.name, "float": task.score(expected), "iterations": options.iterations}
            data |= {"batch": options.batch, "items": sum(map(len, task.calibration)), "machine": machine()}
            options.json.write_text(json.dumps({**data, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
