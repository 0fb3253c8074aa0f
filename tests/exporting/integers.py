"""The quantized values of a graph, by the names of the values that they stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node


class Recorder(Interpreter):
    """Runs a graph and keeps every integer value, under the name of the value that it stands for."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.integers: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and not value.is_floating_point() and n.op != "placeholder":
            self.integers[n.name.removesuffix("_quantize")] = value
        return value


def integers_of(model: GraphModule, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    recorder = Recorder(model)
    with torch.no_grad():
        result = recorder.run(x)
    return recorder.integers, result
