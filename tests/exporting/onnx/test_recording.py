"""The inputs that a model is recorded on before it is exported."""

from __future__ import annotations

import onnxruntime
import torch
from torch import Tensor, nn

import fxquant as fxq


class AnyNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, *rows: Tensor) -> Tensor:
        return self.first(rows[0]) + self.last(rows[-1])


def test_inputs_behind_a_star(tmp_path):
    torch.manual_seed(0)
    model, args = AnyNumber().eval(), (torch.randn(2, 4), torch.randn(2, 4))
    int8 = fxq.quantize(model, [args], progress=False)
    report = fxq.export_onnx(int8, tmp_path / "net.onnx", args)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    got = session.run(None, {name: value.numpy() for name, value in zip(names, args, strict=True)})[0]
    torch.testing.assert_close(torch.from_numpy(got), model(*args), rtol=0, atol=0.05)
    assert report.path
