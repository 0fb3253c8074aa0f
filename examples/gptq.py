"""Weights of 4 bits, rounded in closed form: the inputs of an output make up for each other's errors.

python examples/gptq.py resnet18 --pictures 32          # random weights; half a minute
python examples/gptq.py vit_b_16 --weight-only          # activations stay float; some minutes
An interrupted run goes on where it was, from the folder that ``--checkpoint`` names.
"""

import argparse

import torch
import torchvision

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import make_meaningful

WEIGHT = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric", bits=4)
QCONFIG = fxq.QConfig(activation=fxq.HistogramObserver.with_args(dtype=torch.uint8), weight=WEIGHT, correct_bias=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a network in torchvision.models")
    parser.add_argument("--weight-only", action="store_true", help="linear layers alone, in groups of 32")
    parser.add_argument("--pictures", type=int, default=16, help="to round by")
    parser.add_argument("--side", type=int, default=64, help="pixels of a side")
    parser.add_argument("--checkpoint", help="a folder; default: none")
    options = parser.parse_args()

    torch.manual_seed(0)
    sizes = {"image_size": options.side} if options.model.startswith("vit") else {}
    model = getattr(torchvision.models, options.model)(**sizes).eval()
    make_meaningful(model)
    pictures = torch.randn(options.pictures, 3, options.side, options.side).split(8)
    unseen = torch.randn(8, 3, options.side, options.side)

    qconfig = fxq.weight_only_qconfig(bits=4, group_size=32) if options.weight_only else QCONFIG
    prepared = fxq.calibrate(fxq.prepare(model, pictures[0], qconfig), pictures, progress=False)
    rounded = fxq.gptq(prepared, pictures, checkpoint=options.checkpoint, progress=False)
    print(rounded.reconstruction)
    results = {"to nearest": prepared, "gptq": rounded}
    if not options.weight_only:  # the same integers, with the means and variances of the float model
        results["correct_statistics"] = fxq.correct_statistics(prepared, pictures, progress=False)
    with torch.no_grad():
        exact = model(unseen)
        for name, each in results.items():
            print(f"{name}: SQNR of the logits {sqnr(exact, fxq.convert(each)(unseen)):.1f} dB on pictures not seen")


if __name__ == "__main__":
    main()
