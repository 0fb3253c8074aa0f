"""Reading the passes: what each one does to the first block of a ResNet-18.

    python examples/read_passes.py

The same without writing a line: FXQUANT_DEBUG=2 before any program that uses fxquant, or
``python -m fxquant inspect torchvision:resnet18``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torchvision

import fxquant as fxq

BLOCK = "layer1_0"


def about(block: str, lines: Iterable[str]) -> list[str]:
    """The lines of a diff that define a value of one block."""
    return [line for line in lines if line[2:].startswith(block)]


def main() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(1, 3, 224, 224)
    prepared = fxq.prepare(model, x)
    fxq.calibrate(prepared, [x], progress=False)
    int8 = fxq.convert(prepared)

    # Every pass leaves a snapshot: the graph before and after, as text. A converted model has those of prepare too.
    for snapshot in int8.snapshots:
        print(snapshot.title())
        for line in about(BLOCK, snapshot.diff().splitlines()):
            print(f"    {line}")

    # The plan is what the passes hand on: which nodes become one unit, and which qparams its output has.
    print("\nunits of the block")
    for unit in int8.quant_plan.units:
        if unit.root.startswith(BLOCK):
            y = int8.quant_plan.qparams[unit.roles["y"]]
            print(f"    {unit.pattern:<16} {' '.join(unit.nodes)}")
            print(f"    {'':<16} scale {float(y.scale):.5f}, zero point {int(y.zero_point)}")

    # And this is what is left to run.
    print("\nthe int8 block")
    for node in int8.graph.nodes:
        if node.name.startswith(BLOCK):
            print(f"    {node.format_node()}")


if __name__ == "__main__":
    main()
