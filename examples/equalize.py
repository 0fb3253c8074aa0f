"""Weights with one scale for a whole tensor: on MobileNetV2 the channels of a layer differ too much for that.

python examples/equalize.py              # real weights and photographs; some minutes
Channels are scaled between layers, and ReLU6 stays as it is. ``--quick`` only shows that it runs.
"""

import argparse
import time

import torch
from tabulate import tabulate

import fxquant as fxq
from fxquant.errors import SampleError
from fxquant.samples.networks import mobilenet_v2
from fxquant.samples.photographs import calibration_batches, labelled_batch

WEIGHT = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric", bits=6)
ACTIVATION, LOGITS = (each.with_args(dtype=torch.uint8) for each in (fxq.HistogramObserver, fxq.MinMaxObserver))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    side, count, size = (64, 2, 1) if options.quick else (224, 8, 6)
    try:
        model, batches, (images, labels) = (
            mobilenet_v2(),
            calibration_batches(count, size, side=side),
            labelled_batch(side),
        )
    except SampleError as error:
        print(f"left out, since its data cannot be had here:\n{error}")
        return
    qconfig = fxq.QConfig(activation=ACTIVATION, weight=WEIGHT, output=LOGITS, correct_bias=True)
    prepared = fxq.prepare(model, batches[0], qconfig)
    start = time.perf_counter()
    equalized = fxq.equalize(prepared, batches, progress=False)  # before calibrate: its ranges are others
    seconds = time.perf_counter() - start
    print(equalized.equalization)
    with torch.no_grad():
        expected = model(images)
        table = [("float", f"{int((expected.argmax(1) == labels).sum())} of {len(labels)}", "")]
        for name, each in (("as it is", prepared), ("equalized", equalized)):
            logits = fxq.convert(fxq.calibrate(each, batches, progress=False))(images)
            noise = 10 * torch.log10(expected.square().sum() / (logits - expected).square().sum())
            table.append((name, f"{int((logits.argmax(1) == labels).sum())} of {len(labels)}", f"{noise:.1f}"))
    print(tabulate(table, headers=("W6A8 per tensor", "right", "SQNR, dB"), disable_numparse=True))
    print(f"{equalized.equalization.scaled} channels were scaled, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
