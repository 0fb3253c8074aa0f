"""The qparams of a torchvision model as JSON: written, one of them edited, and applied to a model that saw no data.

python examples/edit_qparams.py resnet18 --output resnet18.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import fxquant as fxq
from fxquant.samples.networks import random_network
from fxquant.samples.photographs import calibration_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name in torchvision.models")
    parser.add_argument("--output", default="qparams.json", help="the file")
    options = parser.parse_args()

    batches = calibration_batches(16, 1)
    model = random_network(options.model, batches)
    prepared = fxq.calibrate(fxq.prepare(model, batches[0]), batches, progress=False)
    table = fxq.qparams(prepared)
    table.save(options.output, overwrite=True)
    print("\n".join(str(table).splitlines()[:8]))

    images, fresh = batches[0][:4], fxq.prepare(model, batches[0])  # without data
    same = fxq.convert(fxq.apply_qparams(fresh, options.output))
    print("the same bits:", torch.equal(same(images), fxq.convert(prepared)(images)))

    data = json.loads(Path(options.output).read_text())
    name = next(iter(data["tensors"]))
    data["tensors"][name]["scale"] = [2 * scale for scale in data["tensors"][name]["scale"]]
    coarse = fxq.convert(fxq.apply_qparams(fresh, data))
    print(f"twice the scale of {name!r}: the same bits:", torch.equal(coarse(images), same(images)))

    table.save(f"{options.output}.onnxruntime.json", format="onnxruntime", overwrite=True)
    theirs = fxq.convert(fxq.apply_qparams(fresh, f"{options.output}.onnxruntime.json", strict=False))
    print("qparams from ONNX Runtime's overrides:", len(fxq.qparams(theirs)), "sets")


if __name__ == "__main__":
    main()
