"""MobileNetV2 with weights and activations of 4 bits, learned from pictures without labels.

python examples/low_bit_mobilenet.py                                 # real weights and photographs; ten minutes
python examples/low_bit_mobilenet.py --weights 4 --activations 8     # faster, and close to the float model
python examples/low_bit_mobilenet.py --checkpoint run                # an interrupted run goes on there
``equalize`` comes first, then ``reconstruct``. The first and the last layer keep 8 bits. ``--quick`` takes a narrow and
short MobileNetV2 with random weights, and only shows that it runs.
"""

import argparse
import time

import torch
import torchvision
from tabulate import tabulate

import fxquant as fxq
from fxquant.errors import SampleError
from fxquant.samples.networks import mobilenet_v2
from fxquant.samples.photographs import calibration_batches, labelled_batch


def short_mobilenet():
    torch.manual_seed(0)
    stages = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]]  # expansion, channels, blocks, stride
    return torchvision.models.MobileNetV2(10, width_mult=0.5, inverted_residual_setting=stages).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=4, help="bits")
    parser.add_argument("--activations", type=int, default=4, help="bits")
    parser.add_argument("--iterations", type=int, default=120, help="steps for each block; 1000 take an hour and more")
    parser.add_argument("--checkpoint", help="a folder")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    side, count, size = (64, 2, 1) if options.quick else (224, 16, 6)
    try:
        model, (images, _) = short_mobilenet() if options.quick else mobilenet_v2(), labelled_batch(side)
        batches = calibration_batches(count, size, side=side)
    except SampleError as error:
        print(f"left out, since its data cannot be had here:\n{error}")
        return
    qconfig = fxq.low_bit_qconfig(options.weights, options.activations)
    prepared = fxq.prepare(model, batches[0], qconfig)
    equalized = fxq.equalize(prepared, batches, progress=False)  # layers where the noise does not fall stay as they are
    fxq.calibrate(equalized, batches, progress=False)
    start = time.perf_counter()
    learned = fxq.reconstruct(
        equalized, batches, iterations=1 if options.quick else options.iterations, checkpoint=options.checkpoint
    )
    seconds = time.perf_counter() - start
    print(learned.reconstruction)
    table = []
    with torch.no_grad():
        expected = model(images)
        for name, each in (("to nearest", equalized), ("learned", learned)):
            logits = fxq.convert(each)(images)
            same = int((logits.argmax(1) == expected.argmax(1)).sum())
            noise = 10 * torch.log10(expected.square().sum() / (logits - expected).square().sum())
            table.append((name, f"{same} of {len(images)}", f"{noise:.1f}"))
    print(tabulate(table, headers=("", "answers of the float model", "SQNR, dB"), disable_numparse=True))
    print(f"W{options.weights}A{options.activations}, learned in {seconds:.0f} s")


if __name__ == "__main__":
    main()
