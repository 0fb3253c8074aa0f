"""A quantized torchvision model through torch.export: saved, opened by a process that has no torchvision, any batch.

python examples/export_torchvision.py resnet18 --output resnet18.pt2
"""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys

import torch

import fxquant as fxq
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches

OPEN = """
import sys
import torch
import fxquant.exporting.operators  # the operators that the file names; torch.ao has them, too

model = torch.export.load(sys.argv[1]).module()
images = torch.load(sys.argv[2])
print("torchvision imported:", "torchvision" in sys.modules)
print("sum of outputs: %.6f" % model(images).double().sum())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name in torchvision.models")
    parser.add_argument("--output", default="model.pt2", help="the file")
    options = parser.parse_args()

    batches = calibration_batches(16, 1)
    int8 = fxq.quantize(random_network(options.model, batches), batches, progress=False)
    batch = {0: torch.export.Dim("batch", min=1, max=256)}
    program = fxq.export(int8, batches[0][:2], dynamic_shapes=(batch,))
    torch.export.save(program, options.output)
    calls = collections.Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
    for name, count in calls.most_common():
        print(f"{count:4} {name}")

    images = batches[0][:5]
    torch.save(images, f"{options.output}.images.pt")
    print(f"sum of outputs here: {fxq.explicit(int8)(images).double().sum():.6f}")
    command = [sys.executable, "-c", OPEN, options.output, f"{options.output}.images.pt"]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
