"""One network of the zoo, measured: a row of ``zoo.py``, as JSON on the last line of what is printed."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torchvision
from peers import PEERS
from torch import Tensor, nn
from zoo_file import round_trip

import fxquant as fxq
from fxquant.demo.measure import interleaved_medians
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch

GIGA_MACS = 32
"""Multiply-accumulates of one forward pass over all images, in 10⁹, above which fewer images are taken."""
IMAGES = (2, 8)
"""Fewest and most images to measure on."""
CALIBRATION = 2
"""Images to calibrate with, for each that is measured on."""
TIMED = 40
"""10⁹ multiply-accumulates of one image, up to which latency is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="as in torchvision.models")
    parser.add_argument("--images", type=int, help="as in zoo.py")
    parser.add_argument("--rounds", type=int, default=5, help="of timed calls")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exported", action="store_true", help="as in zoo.py")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        print(json.dumps(measure(options.model, options.images, options.rounds, options.exported)))


def measure(name: str, images: int | None, rounds: int, exported: bool = False) -> dict[str, Any]:
    """The row: see ``zoo.py`` for what its columns mean."""
    side, giga_macs = facts(name)
    images = images or max(IMAGES[0], min(IMAGES[1], int(GIGA_MACS / giga_macs)))
    calibration = calibration_batches(batch_size=images, num_batches=CALIBRATION, side=side)
    photographs = labelled_batch(side)[0][:images]
    model = random_network(name, [*calibration, photographs])
    last = last_layer(model, calibration[0][:1])
    expected = seen(model, last, photographs)
    row: dict[str, Any] = {"model": name, "side": side, "images": images, "giga_macs": giga_macs}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepared, row["prepare_s"] = timed(fxq.prepare, model, calibration[0][:1])
        row["calibrate_s"] = timed(fxq.calibrate, prepared, calibration, progress=False)[1]
        int8, row["convert_s"] = timed(fxq.convert, prepared)
    row["warnings"] = [str(each.message) for each in caught]
    coverage = prepared.coverage()
    row["int8_macs"] = coverage.int8_macs
    row["float_operators"] = Counter(each.operator for each in coverage.float_rows if not each.excused)
    row["excused"] = sum(each.excused for each in coverage.float_rows)
    row["boundaries"] = sum(isinstance(each, (fxq.nn.Quantize, fxq.nn.Dequantize)) for each in int8.modules())
    row["int8"] = noise(expected, seen(int8, last, photographs))
    if giga_macs <= TIMED:
        calls = {"float_ms": partial(model, photographs[:1]), "int8_ms": partial(int8, photographs[:1])}
        row |= interleaved_medians(calls, rounds)
        del calls
    row["file"] = round_trip(int8, photographs[:1])
    if exported:
        row["exported"] = by_program(model, prepared, int8, calibration, photographs)
    del int8  # the largest networks fill the memory with each form
    row["simulation"] = noise(expected, seen(fxq.convert(prepared, to="fake_quant"), last, photographs))
    del prepared
    row["torch.ao"] = attempt(lambda: seen(PEERS["torch.ao onednn"](model, calibration), last, photographs), expected)
    row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row


def by_program(
    model: nn.Module, prepared: fxq.Quantizer, int8: nn.Module, calibration: list[Tensor], photographs: Tensor
) -> dict[str, Any]:
    """What comes of the program that ``torch.export`` makes: as many units at most, and then the same integers."""
    batch = {0: torch.export.Dim.AUTO}
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example = (calibration[0][:2],)
            program, seconds = timed(torch.export.export, model, example, dynamic_shapes=(batch,), strict=False)
            imported, prepare_s = timed(fxq.prepare, program, example)
            fxq.calibrate(imported, calibration, progress=False)
            equal = torch.equal(fxq.convert(imported)(photographs), int8(photographs))
    except Exception as error:  # a result here, as in attempt
        return {"fails": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", "differs": True}
    units, traced = len(imported.plan.units), len(prepared.plan.units)
    differs = units > traced or (units == traced and not equal)
    found = {"units": units, "traced_units": traced, "equal": equal, "differs": differs}
    return {**found, "export_s": seconds, "prepare_s": prepare_s}


def timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
    """What a call gives, and its seconds."""
    start = time.perf_counter()
    result = call(*args, **kwargs)
    return result, time.perf_counter() - start


def facts(name: str) -> tuple[int, float]:
    """Pixels of a side that the network was made for, and 10⁹ multiply-accumulates of one image.

    Of several sets of weights, that of the smallest images counts: it is the constructor's size.
    """
    weights = torchvision.models.get_model_weights(name)
    smallest = min(weights, key=lambda each: each.transforms.keywords["crop_size"])
    return smallest.transforms.keywords["crop_size"], smallest.meta["_ops"]


def last_layer(model: nn.Module, x: Tensor) -> str:
    """Path of the linear layer or convolution that runs last."""
    order: list[str] = []
    layers = [(path, each) for path, each in model.named_modules() if isinstance(each, (nn.Conv2d, nn.Linear))]
    hooks = [each.register_forward_pre_hook(lambda *_, path=path: order.append(path)) for path, each in layers]
    model(x)
    for hook in hooks:
        hook.remove()
    return order[-1]


def seen(model: Any, last: str, photographs: Tensor) -> tuple[Tensor, Tensor]:
    """Input of the last layer, as float values, and output of the model; one photograph at a time, as users call it."""
    inputs: list[Tensor] = []
    with listening(model.get_submodule(last), inputs):
        outputs = [model(photograph[None]) for photograph in photographs]
    return torch.cat(inputs), torch.cat(outputs)


@contextmanager
def listening(layer: nn.Module, inputs: list[Tensor]) -> Iterator[None]:
    def keep(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        (x,) = args
        if isinstance(layer, fxq.nn.QuantizedModule):
            x = fxq.kernels.dequantize(x, *layer.scalars("x"))
        elif x.is_quantized:
            x = x.dequantize()
        inputs.append(x.clone())

    hook = layer.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def noise(expected: tuple[Tensor, Tensor], got: tuple[Tensor, Tensor]) -> dict[str, float]:
    """dB at the last layer's input, and at the output, of the median image.

    A random network may blow up the values of one image, beyond every range that was seen; of all images together, SQNR
    would be about that one.
    """
    values = [[sqnr(*pair) for pair in zip(*each, strict=True)] for each in zip(expected, got, strict=True)]
    return {"input": statistics.median(values[0]), "output": statistics.median(values[1])}


def attempt(call: Callable[[], tuple[Tensor, Tensor]], expected: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The peer's noise; if it does not convert or run, the first line of its reason."""
    try:
        return noise(expected, call())
    except Exception as error:  # whatever another tool raises is a result here
        return {"fails": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


if __name__ == "__main__":
    main()
