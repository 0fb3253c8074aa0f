"""Writes the files that every later version has to open: one of each kind, in the format of today.

python tests/artifact/write_files.py    # when a format has its final form; files of older ones stay
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.format import FORMAT, KINDS

FOLDER = Path(__file__).parent / "files"


class Net(nn.Module):
    """A convolution with what is folded into it, a table, a join, and a linear layer of 4 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.point, self.fc = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.fc(self.point(torch.cat([x, torch.tanh(x)], 1)).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    few = fxq.QConfig(
        activation=fxq.MinMaxObserver,
        weight=fxq.PerChannelMinMaxObserver.with_args(bits=4, dtype=torch.int8, qscheme="per_channel_symmetric"),
    )
    mapping = fxq.get_default_qconfig_mapping().set_module_name("fc", few)
    prepared = fxq.calibrate(fxq.prepare(Net().eval(), x, mapping), [x], progress=False)
    kept = {"x": x}
    FOLDER.mkdir(exist_ok=True)
    for kind in KINDS:
        form = "int8" if kind == "prepared" else kind
        model: Any = prepared.graph_module if kind == "float" else fxq.convert(prepared, to=form)
        path = FOLDER / f"format-{FORMAT}-{kind}.fxq"
        written = prepared if kind == "prepared" else model
        fxq.save(written, path, notes={"written by": "write_files.py"}, overwrite=True)
        kept[kind] = model(x)
    taking = fxq.prepare(Net().eval(), x, mapping, integer_inputs=True, integer_outputs=True)
    model = fxq.convert(fxq.calibrate(taking, [x], progress=False))
    fxq.save(model, FOLDER / f"format-{FORMAT}-integers.fxq", notes={"written by": "write_files.py"}, overwrite=True)
    kept["integers x"] = torch.arange(x.numel()).mul(7).remainder(256).to(torch.uint8).view(x.shape)
    kept["integers"] = model(kept["integers x"])
    safetensors.torch.save_file(kept, FOLDER / f"format-{FORMAT}.safetensors")


if __name__ == "__main__":
    main()
