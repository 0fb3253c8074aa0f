"""A torchvision model that takes the bytes of its input's qparams and gives bytes, as hardware and pipelines want it.

python examples/bytes_in_and_out.py resnet18
"""

from __future__ import annotations

import argparse

import torch

import fxquant as fxq
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name in torchvision.models")
    options = parser.parse_args()

    batches = calibration_batches(16, 1)
    model = random_network(options.model, batches)
    prepared = fxq.prepare(model, batches[0], integer_inputs=True, integer_outputs=True)
    int8 = fxq.convert(fxq.calibrate(prepared, batches, progress=False))

    (x,), (y,) = int8.integer_inputs.values(), int8.integer_outputs.values()
    print(f"takes {x.scheme}: scale {x.scale.item():.4g}, zero point {x.zero_point.item()}")
    print(f"gives {y.scheme}: scale {y.scale.item():.4g}, zero point {y.zero_point.item()}")

    images = batches[0][:4]
    given = (images * (1 / x.scale)).round().add(x.zero_point).clamp(x.scheme.quant_min, x.scheme.quant_max)
    result = int8(given.to(x.scheme.dtype))
    floats = (result.int() - y.zero_point) * y.scale
    print("dtype of the result:", result.dtype)

    simulated = fxq.convert(prepared, to="fake_quant")(images)  # takes and gives the floats that the bytes stand for
    steps = ((floats - simulated) / y.scale).abs().round()
    print(f"equal to the simulation: {(steps == 0).float().mean():.0%}, at most {int(steps.max())} steps apart")
    print("the same class:", torch.equal(floats.argmax(1), simulated.argmax(1)))


if __name__ == "__main__":
    main()
