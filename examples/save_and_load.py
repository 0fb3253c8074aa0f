"""A quantized torchvision model in one file, opened again by a process that has no torchvision.

python examples/save_and_load.py resnet18 --output resnet18.fxq
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

import fxquant as fxq
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches

OPEN = """
import sys
import torch
import fxquant as fxq

model = fxq.load(sys.argv[1])
print("torchvision imported:", "torchvision" in sys.modules)
print("sum of outputs: %.6f" % model(torch.load(sys.argv[2])).double().sum())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name in torchvision.models")
    parser.add_argument("--output", default="model.fxq", help="the file")
    options = parser.parse_args()

    batches = calibration_batches(16, 1)
    int8 = fxq.quantize(random_network(options.model, batches), batches, progress=False)
    fxq.save(int8, options.output, notes={"network": options.model, "weights": "random"}, overwrite=True)
    print(fxq.inspect_artifact(options.output))

    images = batches[0][:4]
    torch.save(images, f"{options.output}.images.pt")
    print(f"sum of outputs here: {int8(images).double().sum():.6f}")
    command = [sys.executable, "-c", OPEN, options.output, f"{options.output}.images.pt"]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
