"""Training at few bits on Fashion-MNIST: float, quantized afterwards, trained quantized, and with learned steps.

About eight minutes on two cores; the plot goes to out/. ``--quick``: a few made-up pictures, to see that it runs.
Every quantized row runs as int8 on the CPU (fewer bits are stored in bytes); "same %" says how often it answers as its
simulation in float does, which is what was trained.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from tabulate import tabulate
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import fxquant as fxq
from fxquant.samples.fashion import ResidualNet, fashion_mnist


def learned_steps(weight_bits, activation_bits):
    """Eight bits in the first and in the last layer, where fewer hurt most."""
    few, eight = fxq.get_lsq_qconfig(weight_bits, activation_bits), fxq.get_lsq_qconfig()
    return fxq.QConfigMapping().set_global(few).set_module_name("conv", eight).set_module_name("fc", eight)


def made_up_pictures(count):
    """Of each class the same one, under noise; small, and the same when mirrored."""
    patterns, classes = torch.randn(10, 1, 14, 14), torch.arange(count) % 10
    return (patterns + patterns.flip(3))[classes] + torch.randn(count, 1, 14, 14), classes


def train(model, data, epochs, rate, what):
    images, labels = data
    batches = torch.cat([torch.randperm(len(images)) for _ in range(epochs)]).split(min(128, len(images) // 16))
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    annealing = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=len(batches))
    model.train()
    for picked in tqdm(batches, desc=what, unit="step", disable=None):
        mirrored = torch.rand(len(picked), 1, 1, 1) < 0.5
        optimizer.zero_grad()
        logits = model(torch.where(mirrored, images[picked].flip(3), images[picked]))
        cross_entropy(logits, labels[picked]).backward()
        optimizer.step()
        annealing.step()
    return model.eval().apply(fxq.disable_observer)


@torch.no_grad()
def answers(model, images):
    return torch.cat([model(batch).argmax(1) for batch in images.split(500)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--weights", type=Path, help="float weights: read where the file exists, else written")
    parser.add_argument("--output", type=Path, default=Path("out/qat_fashion_mnist.png"))
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.quick:
        pictures, classes = made_up_pictures(768)
        data, (images, labels) = (pictures[:512], classes[:512]), (pictures[512:], classes[512:])
    else:
        data, (images, labels) = fashion_mnist("train"), fashion_mnist("test")
    model, rows = ResidualNet().eval(), []
    if options.weights and options.weights.exists():
        model.load_state_dict(torch.load(options.weights))
    else:
        train(model, data, 1 if options.quick else 6, 0.2, "float")
        if options.weights:
            torch.save(model.state_dict(), options.weights)
    calibration = data[0][:1024].split(256)

    def row(name, simulated, int8):
        wanted, got = answers(simulated, images), answers(int8, images)
        rows.append([name, *(100 * (got == other).float().mean().item() for other in (labels, wanted))])

    row("float", model, model)
    for name, qconfig in {"W8A8, afterwards": None, "W4A4, afterwards": learned_steps(4, 4)}.items():
        prepared = fxq.prepare(model, calibration[0], qconfig).calibrate(calibration, progress=False)
        row(name, fxq.convert(prepared, to="fake_quant"), fxq.convert(prepared))
    for name, bits in {"W8A8, trained": (), "W4A4, learned steps": (4, 4), "W2A8, learned steps": (2, 8)}.items():
        qat = fxq.prepare_qat(model, calibration[0], learned_steps(*bits) if bits else None)
        answers(qat, data[0][:1024])  # chooses the qparams, which learned steps begin with
        train(qat.apply(fxq.enable_param_learning), data, 1, 0.02, name)
        row(name, qat, fxq.convert(qat))
    print(tabulate(rows, headers=["", "accuracy %", "same %"], floatfmt=".2f"))
    names, accuracies, _ = zip(*rows, strict=True)
    figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
    axes.bar_label(axes.barh(names[::-1], accuracies[::-1]), fmt="%.2f", padding=3)
    axes.set(title=f"Fashion-MNIST, {len(images)} test pictures", xlabel="accuracy, %", xlim=(0, 115))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output)


if __name__ == "__main__":
    main()
