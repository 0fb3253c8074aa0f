"""A program of torch.export, as a file gives it, is quantized like the model: the same names, rules and integers.

python examples/quantize_exported.py resnet18 --output resnet18_float.pt2
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
    parser.add_argument("--output", default="model.pt2", help="the file of the float program")
    options = parser.parse_args()

    batches = calibration_batches(4, 2)
    model = random_network(options.model, batches)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    torch.export.save(torch.export.export(model, (batches[0],), dynamic_shapes=(batch,)), options.output)

    program = torch.export.load(options.output)  # of a file that you trust: torch may unpickle it
    first = next(iter(program.state_dict)).rpartition(".")[0]
    rules = fxq.get_default_qconfig_mapping().set_module_name(first, None)
    prepared = fxq.prepare(program, batches[0], rules)
    print(prepared.coverage())
    print(f"stays float by its name: {first}")

    by_program = fxq.quantize(program, batches, progress=False)
    by_model = fxq.quantize(model, batches, progress=False)
    images = batches[1][:3]  # another batch size
    print("the same integers by the program and by the model:", torch.equal(by_program(images), by_model(images)))


if __name__ == "__main__":
    main()
