"""Weights of 4 and 2 bits without labels: which to round up is learned from pictures, layer by layer.

python examples/adaround.py fashion      # trains a small net first (minutes), unless --weights names a file of a net
python examples/adaround.py mobilenet    # real weights and photographs; half an hour on two cores
Every row is int8 on the CPU (few bits in bytes), with activations of 8 bits. ``--quick`` only shows that it runs.
"""

import argparse
import time
from pathlib import Path

import torch
from tabulate import tabulate
from torch.nn.functional import cross_entropy

import fxquant as fxq
from fxquant.errors import SampleError
from fxquant.samples.fashion import ResidualNet, fashion_mnist
from fxquant.samples.networks import mobilenet_v2
from fxquant.samples.photographs import calibration_batches, labelled_batch

PER_TENSOR = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
PER_CHANNEL = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0)
ACTIVATIONS, LOGITS = (each.with_args(dtype=torch.uint8) for each in (fxq.HistogramObserver, fxq.MinMaxObserver))


def train(model, images, labels, epochs, batch=128):
    """A net that has learned; of a file of weights nothing of this is needed."""
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=epochs * (len(images) // batch))
    for _ in range(epochs):
        for picked in torch.randperm(len(images))[: len(images) // batch * batch].split(batch):
            optimizer.zero_grad()
            cross_entropy(model(images[picked]), labels[picked]).backward()
            optimizer.step()
            schedule.step()


def fashion(options):
    images, labels = fashion_mnist("train")
    model = ResidualNet()
    if options.weights is not None and options.weights.exists():
        model.load_state_dict(torch.load(options.weights, weights_only=True))
    else:
        print("training the float net", flush=True)
        count, epochs = (1280, 1) if options.quick else (len(images), 6)
        train(model, images[:count], labels[:count], epochs)
        if options.weights is not None:
            torch.save(model.state_dict(), options.weights)
    pictures = images[: 32 if options.quick else 1024].split(128)
    test = [part[: 200 if options.quick else None] for part in fashion_mnist("test")]
    return model.eval(), pictures, test, {"W4 per tensor": (PER_TENSOR, 4), "W2 per channel": (PER_CHANNEL, 2)}


def mobilenet(options):
    side = 64 if options.quick else 224
    batches = calibration_batches(2 if options.quick else 16, 1 if options.quick else 6, side=side)
    return mobilenet_v2(), batches, labelled_batch(side), {"W4 per channel": (PER_CHANNEL, 4)}


@torch.no_grad()
def right(model, images, labels):
    answers = torch.cat([model(batch).argmax(1) for batch in images.split(200)])
    return f"{int((answers == labels).sum())} of {len(labels)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=("fashion", "mobilenet"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--weights", type=Path, help="float weights of the small net; where there are none, to write to"
    )
    parser.add_argument("--checkpoint", type=Path, help="a folder, with which an interrupted run goes on")
    options = parser.parse_args()
    try:
        model, batches, test, qparams = {"fashion": fashion, "mobilenet": mobilenet}[options.net](options)
    except SampleError as error:
        print(f"left out, since its data cannot be had here:\n{error}")
        return
    table = [("float", right(model, *test), "")]
    for name, (observer, bits) in qparams.items():
        qconfig = fxq.QConfig(activation=ACTIVATIONS, weight=observer.with_args(bits=bits), output=LOGITS)
        prepared = fxq.calibrate(fxq.prepare(model, batches[0], qconfig), batches)
        table.append((f"{name}, to nearest", right(fxq.convert(prepared), *test), ""))
        start = time.perf_counter()
        folder = options.checkpoint and options.checkpoint / name.replace(" ", "_")
        iterations, rows = (1, 64) if options.quick else (500, 1024)
        learned = fxq.adaround(prepared, batches, iterations=iterations, rows=rows, checkpoint=folder)
        seconds = f"{time.perf_counter() - start:.0f}"
        print(learned.reconstruction)
        table.append((f"{name}, AdaRound", right(fxq.convert(learned), *test), seconds))
    print(tabulate(table, headers=("weights", "right", "seconds to learn"), disable_numparse=True))


if __name__ == "__main__":
    main()
