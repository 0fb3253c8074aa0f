"""A torchvision model, planned for a runtime and written for it: which units run on integers there, and what is equal.

python examples/export_onnx.py resnet18 --output resnet18.onnx
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
    parser.add_argument("--target", default="onnxruntime", choices=("onnxruntime", "openvino", "tensorrt"))
    parser.add_argument("--output", default="model.onnx", help="the file")
    options = parser.parse_args()

    batches = calibration_batches(16, 1)
    prepared = fxq.prepare(random_network(options.model, batches), batches[0], backend=options.target)
    fxq.calibrate(prepared, batches, progress=False)
    model = fxq.convert(prepared, to="reference")
    report = fxq.export_onnx(
        model,
        options.output,
        batches[0][:2],
        target=options.target,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["images"],
        check=True,  # in ONNX Runtime, whatever the target is
        overwrite=True,
    )
    print(report)


if __name__ == "__main__":
    main()
