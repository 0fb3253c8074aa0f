"""Sizes that never change are numbers, others stay what they are; units for one rank refuse another."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.trace_guards import require_rank


class Scaled(nn.Module):
    """Attention's scale as people write it."""

    def __init__(self, body) -> None:
        super().__init__()
        self.norm, self.linear, self.last, self.heads = nn.RMSNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), 2
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.last(self.linear(x) * self.body(self, x))


X = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: (x.shape[2] // m.heads) ** -0.5,
        lambda m, x: (x.size(-1) // m.heads) ** -0.5,
        lambda m, x: (x.size()[2] // m.heads) ** -0.5,
        lambda m, x: 1 / math.sqrt(x.shape[-1]),
        lambda m, x: float(x.shape[-1]) ** -0.5,
    ],
)
def test_a_number_of_fixed_sizes_is_a_number(body):
    model = Scaled(body).eval()
    prepared = fxq.prepare(model, X)
    assert [unit.pattern for unit in prepared.plan.units] == ["linear", "rescale", "linear"]
    (scale,) = (node for node in prepared.graph.nodes if node.target is torch.mul)
    assert scale.args[1] == body(model, X)
    assert "shape" not in prepared.graph_module.code
    longer = torch.rand(3, 5, 8)
    with torch.no_grad():
        assert torch.equal(prepared(longer), model(longer))


@pytest.mark.parametrize("body", [lambda m, x: x.shape[1] ** -0.5, lambda m, x: x.shape[0] + x.shape[2]])
def test_other_sizes_are_asked_for_in_every_call(body):
    model = Scaled(body).eval()
    prepared = fxq.prepare(model, X)
    assert "rescale" not in [unit.pattern for unit in prepared.plan.units]
    longer = torch.rand(3, 5, 8)
    with torch.no_grad():
        assert torch.equal(prepared(longer), model(longer))


def test_a_size_that_is_returned_is_a_number_too():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
            y = self.linear(x)
            return y, y.shape[-1], y.shape[0]

    prepared = fxq.prepare(Net().eval(), X)
    assert prepared(torch.rand(5, 8))[1:] == (4, 5)


def normed(layer: nn.Module, norm: nn.Module, *more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(layer, norm, *more)
    model(torch.randn(16, 8) if isinstance(layer, nn.Linear) else torch.randn(16, 8, 8))  # statistics
    return model.eval()


def guards(prepared: fxq.Quantizer) -> list[Any]:
    return [node.args[1:] for node in prepared.graph.nodes if node.target is require_rank]


@pytest.mark.parametrize("form", ["int8", "fake_quant", "reference"])
def test_a_linear_layer_with_a_norm_takes_the_rank_of_its_example(form: str) -> None:
    model = normed(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    x, longer = torch.randn(64, 8), torch.randn(4, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    converted = fxq.convert(prepared, to=form)
    assert float((converted(x) - model(x)).detach().abs().max()) < 0.1
    for call in (prepared, converted, converted):
        with pytest.raises(fxq.errors.InputError) as caught:
            call(longer)
        assert str(caught.value).splitlines()[:4] == [
            "a norm was planned for inputs of 2 dimensions: of these, another dimension is the channels",
            "  at:       1 (Linear and BatchNorm1d)",
            "  got:      3 dimensions",
            "  expected: 2, as in the example inputs",
        ]
        assert torch.equal(call(x), call(x))


def test_a_calibration_batch_of_another_rank_is_refused() -> None:
    model = normed(nn.Linear(8, 8), nn.BatchNorm1d(8))
    prepared = fxq.prepare(model, torch.randn(4, 8))
    with pytest.raises(fxq.errors.InputError, match=r"another dimension is the channels\n  at: .*1 \(Linear and"):
        fxq.calibrate(prepared, [torch.randn(4, 8), torch.randn(4, 8, 8)], progress=False)


def test_the_line_of_the_user_is_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.fc(x))

    prepared = fxq.prepare(Net().eval(), torch.randn(4, 8))
    line = r"bn \(Linear and BatchNorm1d\), from .*test_specialize_shapes\.py:"
    with pytest.raises(fxq.errors.InputError, match=line):
        prepared(torch.randn(4, 8, 8))


def test_an_input_is_asked_once_and_nothing_else_is_guarded() -> None:
    twice = normed(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))
    assert len(guards(fxq.prepare(twice, torch.randn(4, 8)))) == 1
    for model, x in (
        (normed(nn.Conv1d(8, 8, 1), nn.BatchNorm1d(8)), torch.randn(2, 8, 8)),
        (nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Conv2d(3, 3, 1)), torch.randn(1, 3, 3, 3)),
    ):
        assert len(guards(fxq.prepare(model.eval(), x))) == 1
    for model, x in (
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), torch.randn(1, 3, 3, 3)),
        (nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8)), torch.randn(4, 8)),
    ):
        assert guards(fxq.prepare(model.eval(), x)) == []


def test_what_stays_float_takes_any_rank() -> None:
    model = normed(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model = model.append(nn.Linear(8, 8)).eval()
    mapping = fxq.get_default_qconfig_mapping().set_module_name("1", None)
    prepared = fxq.prepare(model, torch.randn(4, 8), mapping)
    longer = torch.randn(4, 8, 8)
    assert torch.equal(prepared(longer), model(longer))


def test_while_training_the_same_is_refused() -> None:
    model = normed(nn.Linear(8, 8), nn.BatchNorm1d(8))
    x = torch.randn(64, 8)
    training = fxq.prepare_qat(model, x).train()
    training(x).sum().backward()
    for call in (training, fxq.convert(training.eval())):
        with pytest.raises(fxq.errors.InputError, match="another dimension is the channels"):
            call(torch.randn(4, 8, 8))
