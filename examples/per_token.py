"""A vision transformer whose linear layers choose a scale for each token in each call: nothing is calibrated.

python examples/per_token.py --layers 4 --side 64 --output vit.fxq     # torchvision's, random weights
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.samples.networks import make_meaningful


def network(layers: int, side: int) -> nn.Module:
    """A small one of torchvision, with random weights."""
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(side, 8, layers, num_heads=4, hidden_dim=128, mlp_dim=256, num_classes=100).eval()
    make_meaningful(model)
    return model


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="of the encoder")
    parser.add_argument("--side", type=int, default=32, help="pixels of a side")
    parser.add_argument("--output", type=Path, default=Path("per_token.fxq"), help="the file")
    options = parser.parse_args()

    model, x = network(options.layers, options.side), torch.randn(4, 3, options.side, options.side)
    x[0] *= 10  # one range for all pictures is that of the brightest
    for name, qconfig in (("tensor", fxq.default_dynamic_qconfig), ("token", fxq.default_per_token_qconfig)):
        int8 = fxq.convert(fxq.prepare(model, x, qconfig))
        print(f"one range for each {name}: SQNR of the logits {sqnr(model(x), int8(x)):.1f} dB")
    layers = [module for module in int8.modules() if isinstance(module, fxq.nn.QuantizedDynamicLinear)]
    print(f"{len(layers)} linear layers; the first: {layers[0]}")

    fxq.save(int8, options.output, overwrite=True)
    print("the file gives the same bits:", torch.equal(fxq.load(options.output)(x), int8(x)))


if __name__ == "__main__":
    main()
