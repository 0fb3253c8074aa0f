"""The float model that training is compared with has the gradients that its loss has."""

from __future__ import annotations

import torch
from torch import nn

from tests.fuzz.case import Case
from tests.fuzz.source import Input, draw, seeded
from tests.fuzz.training import float_model_of


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = seeded(1, nn.InstanceNorm2d(3, affine=True))

    def forward(self, x):
        return self.norm(x)


def test_gradients_of_an_instance_norm_do_not_depend_on_memory():
    model = float_model_of(Case(Norm, (Input("x", (3, 3, 5, 6)),), 0, ""))
    x, gradient = draw(2, 3, 3, 5, 6), draw(3, 3, 3, 5, 6)
    for given in (gradient, gradient.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)):
        model.zero_grad()
        model(x).backward(given)
        assert torch.allclose(model.norm.bias.grad, gradient.sum((0, 2, 3)), atol=1e-4)
