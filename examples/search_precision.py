"""Half the bytes: which layers of a torchvision model can do with 4 bits, and which need 8.

python examples/search_precision.py              # MobileNetV2 with its weights, and photographs; some minutes
``--quick`` takes SqueezeNet with random weights, and only shows that it runs.
"""

import argparse

import torch
from tabulate import tabulate

import fxquant as fxq
from fxquant.errors import SampleError
from fxquant.samples.networks import mobilenet_v2, random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", type=float, default=0.55)
    options = parser.parse_args()
    side, count, size = (64, 2, 1) if options.quick else (224, 8, 4)
    try:
        batches, (images, labels) = calibration_batches(count, size, side=side), labelled_batch(side)
        model = random_network("squeezenet1_1", batches) if options.quick else mobilenet_v2()
    except SampleError as error:
        print(f"left out, since its data cannot be had here:\n{error}")
        return
    prepared = fxq.calibrate(fxq.prepare(model, batches[0]), batches, progress=False)
    found = fxq.search_precision(
        prepared,
        batches[:2],
        budget=fxq.Budget(size=options.size),  # of all weights at 8 bits
        candidates=["W4A8", "W8A8"],
        estimate="gradient" if options.quick else "alone",
        progress=not options.quick,
    )
    print(found)
    mixed = fxq.calibrate(fxq.prepare(model, batches[0], found.mapping()), batches, progress=False)
    with torch.no_grad():
        expected = model(images)
        table = [("float", f"{int((expected.argmax(1) == labels).sum())} of {len(labels)}", "")]
        for name, each in (("all at 8 bits", prepared), ("found", mixed)):
            logits = fxq.convert(each)(images)
            noise = 10 * torch.log10(expected.square().sum() / (logits - expected).square().sum())
            table.append((name, f"{int((logits.argmax(1) == labels).sum())} of {len(labels)}", f"{noise:.1f}"))
    print(tabulate(table, headers=("weights", "right", "SQNR, dB"), disable_numparse=True))
    narrow = [row.name for row in found if row.weight == 4]
    print(f"{len(narrow)} of {len(found)} groups have weights of 4 bits")


if __name__ == "__main__":
    main()
