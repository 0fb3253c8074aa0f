"""The float model that training is compared with has the gradients that its loss has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from tests.fuzz.case import Case
from tests.fuzz.source import Input, draw, seeded
from tests.fuzz.training import first_step, float_model_of


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


class MeanOfNormalized(nn.Module):
    """The mean of what a batch norm gives is its bias: nothing before it has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = seeded(444001, nn.Conv2d(4, 12, 3, padding=1))
        self.norm = seeded(533610, nn.BatchNorm2d(12))
        self.linear = seeded(297042, nn.Linear(12, 12))

    def forward(self, x):
        return self.linear(F.adaptive_avg_pool2d(self.norm(self.conv(x)), 1).flatten(2).transpose(1, 2))


def mean_of_normalized() -> Case:
    return Case(MeanOfNormalized, (Input("x", (1, 4, 2, 1)),), 215401181, "")


def test_gradients_of_a_batch_norm_do_not_depend_on_memory():
    model = float_model_of(mean_of_normalized())
    given = []
    model.norm.register_forward_hook(lambda module, args, result: result.register_hook(given.append) and None)
    model(draw(2, 1, 4, 2, 1)).square().sum().backward()
    assert not given[0].is_contiguous()
    own = float(model.norm.bias.grad.norm())
    for parameter in (model.norm.weight, model.conv.weight, model.conv.bias):
        assert float(parameter.grad.norm()) < 1e-3 * own


def test_a_model_whose_first_gradients_are_zero_trains_as_float():
    assert first_step(mean_of_normalized()) == ""


def test_a_wrong_gradient_of_such_a_model_is_found(monkeypatch):
    prepare_qat = fxq.prepare_qat

    def faulty(*args, **kwargs):
        trained = prepare_qat(*args, **kwargs)
        dict(trained.named_parameters())["linear.weight"].register_hook(torch.neg)
        return trained

    monkeypatch.setattr(fxq, "prepare_qat", faulty)
    assert first_step(mean_of_normalized()).startswith("the cosine of the gradients is")
