"""A vision transformer whose linear layers keep weights of few bits: nothing is calibrated, activations stay float.

python examples/weight_only.py vit_b_16 --bits 4 --group-size 32 --output vit.fxq     # random weights, small pictures
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import make_meaningful


def network(name: str, side: int) -> nn.Module:
    """One of torchvision, for pictures of this size."""
    import torchvision

    arguments = {"image_size": side} if name.startswith("vit") else {}
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(**arguments).eval()
    make_meaningful(model)
    return model


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a transformer in torchvision.models")
    parser.add_argument("--bits", type=int, default=4, help="of a weight")
    parser.add_argument("--group-size", type=int, help="values that share a scale; default: a row")
    parser.add_argument("--side", type=int, default=32, help="pixels of a side")
    parser.add_argument("--output", type=Path, default=Path("weight_only.fxq"), help="the file")
    options = parser.parse_args()

    model, x = network(options.model, options.side), torch.randn(2, 3, options.side, options.side)
    qconfig = fxq.weight_only_qconfig(bits=options.bits, group_size=options.group_size)
    prepared = fxq.prepare(model, x, qconfig)
    int8 = fxq.convert(prepared)
    layers = [module for module in int8.modules() if isinstance(module, fxq.nn.QuantizedWeightOnlyLinear)]
    print(f"{len(layers)} linear layers; the first: {layers[0]}")
    print(f"SQNR of the logits: {sqnr(model(x), int8(x)):.1f} dB")

    fxq.save(int8, options.output, overwrite=True)
    size = sum(value.nbytes for value in model.state_dict().values())
    print(f"float: {size / 1e6:.1f} MB; file: {options.output.stat().st_size / 1e6:.1f} MB")
    print("the file gives the same bits:", torch.equal(fxq.load(options.output)(x), int8(x)))


if __name__ == "__main__":
    main()
