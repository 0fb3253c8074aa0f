"""One network of ``zoo_others.py``, measured: a row of its table, as JSON on the last line of what is printed."""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree
from zoo_file import round_trip
from zoo_others_models import entries

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import make_meaningful, take_statistics
from fxquant.samples.photographs import calibration_batches, labelled_batch

CONTROL = 45
"""dB of the noise that the control's inputs carry."""
CALIBRATION = 4
"""Batches to calibrate with."""
GUILTY = 2
"""Layers that a row names where int8 is too noisy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=entries(), metavar="MODEL", help="as zoo_others.py lists it")
    parser.add_argument("--images", type=int, default=2, help="to measure on, and of each calibration batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--allowed", type=float, default=20, help="dB below the control from which layers are named")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        print(json.dumps(measure(options.model, options.images, options.allowed)))


def measure(name: str, images: int, allowed: float) -> dict[str, Any]:
    """The row: see ``zoo_others.py`` for what its columns mean."""
    entry = entries()[name]
    torch.manual_seed(0)
    model = entry.build().eval()
    side = entry.side(model)
    batches = [entry.inputs(x) for x in calibration_batches(batch_size=images, num_batches=CALIBRATION, side=side)]
    inputs = entry.inputs(labelled_batch(side)[0][:images])
    make_meaningful(model)
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        take_statistics(_Called(model), batches)
    expected = leaves(model(*inputs))
    row: dict[str, Any] = {"model": name, "side": side, "control": worst(expected, leaves(model(*noisy(inputs))))}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepared, row["prepare_s"] = timed(lambda: fxq.prepare(model, batches[0]))
        row["prepared"] = worst(leaves(model(*batches[0])), leaves(prepared(*batches[0])))
        row["calibrate_s"] = timed(lambda: fxq.calibrate(prepared, batches[1:], progress=False))[1]
        int8, row["convert_s"] = timed(lambda: fxq.convert(prepared))
    row["warnings"] = [" ".join(" ".join(str(each.message).splitlines()[:2]).split()) for each in caught]  # what, where
    coverage = prepared.coverage()
    row["int8_macs"] = coverage.int8_macs
    row["float_operators"] = Counter(each.operator for each in coverage.float_rows if not each.excused)
    row["int8"] = worst(expected, leaves(int8(*inputs)))
    row["file"] = round_trip(int8, *inputs)
    row["simulation"] = worst(expected, leaves(fxq.convert(prepared, to="fake_quant")(*inputs)))
    if row["int8"] < min(row["control"], CONTROL) - allowed:
        found = fxq.compare(model, int8, [inputs], progress=False)
        row["guilty"] = [
            f"{each.name}: {each.isolated.sqnr:.0f} dB alone, {each.fault or each.cause}"
            for each in found.worst(GUILTY)
        ]
    row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row


class _Called(nn.Module):
    """A model that takes its inputs as one tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: tuple[Tensor, ...]) -> Any:
        return self.model(*inputs)


def noisy(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    level = 10 ** (-CONTROL / 20)
    return tuple(x + level * x.std() * torch.randn(x.shape, generator=generator) for x in inputs)


def leaves(output: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(output) if isinstance(each, Tensor) and each.is_floating_point()]


def worst(expected: list[Tensor], got: list[Tensor]) -> float:
    """dB of the output that is worst, of several."""
    decibels = [sqnr(*pair) for pair in zip(expected, got, strict=True)]
    return min((each for each in decibels if not math.isnan(each)), default=-math.inf)  # NaN is of zeros alone


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives, and its seconds."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
