"""QuantizedBatchNorm against the formula, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.nn.batch_norm import QuantizedBatchNorm, affine, training_factor
from fxquant.nn.folding import batch_norm_factor
from fxquant.plan.spec import Clamp, QParams, QScheme

STEPS = 1
"""The int8 operator may be one step from the reference (design numerics)."""

X = QParams(QScheme(signed=False), torch.tensor([0.05]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([120], dtype=torch.int32))


def trained(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    norm.running_mean.uniform_(-1, 1, generator=generator)
    norm.running_var.uniform_(0.2, 3, generator=generator)
    if norm.affine:
        with torch.no_grad():
            norm.weight.uniform_(-2, 2, generator=generator)
            norm.bias.uniform_(-1, 1, generator=generator)
            norm.weight[0] = 0.0
    return norm.eval()


@pytest.mark.parametrize("activation", [None, Clamp(0.0, None)])
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (40, 6)),
        (nn.BatchNorm1d(6), (5, 6, 7)),
        (nn.BatchNorm2d(6), (3, 6, 5, 4)),
        (nn.BatchNorm2d(6, affine=False), (3, 6, 5, 4)),
        (nn.BatchNorm3d(6), (2, 6, 3, 4, 5)),
    ],
    ids=["features", "1d", "2d", "not affine", "3d"],
)
@torch.no_grad()
def test_nothing_but_the_output_is_rounded(norm, shape, activation) -> None:
    q = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    module = QuantizedBatchNorm(trained(norm), x=X, y=Y, activation=activation)
    real = norm.double()((q.double() - 100) * X.scale.double())
    norm.float()
    if activation is not None:
        real = real.clamp(min=0)
    steps = (real / Y.scale.double() + 120).clamp(0, 255)
    assert float((module.reference(q).double() - steps).abs().max()) <= 0.5 + 1e-4  # float32 arithmetic
    assert int((module(q).int() - module.reference(q).int()).abs().max()) <= STEPS
    assert module(q).shape == q.shape
    assert "batch norm" in repr(module)


def test_factor_and_shift() -> None:
    norm = nn.BatchNorm1d(2, eps=0.01)
    norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
    norm.running_var.copy_(torch.tensor([3.99, 0.24]))
    factor, shift = affine(norm)
    assert torch.allclose(factor, torch.tensor([0.5, 2.0]))
    assert torch.allclose(shift, torch.tensor([-0.5, 2.0]))
    assert (factor.dtype, shift.dtype) == (torch.float32, torch.float32)


def test_random_numbers_stay() -> None:
    state = torch.get_rng_state()
    QuantizedBatchNorm(trained(nn.BatchNorm2d(4)), x=X, y=Y)
    assert torch.equal(torch.get_rng_state(), state)


def test_training_factor_is_never_near_0_and_keeps_the_dtype():
    gamma = torch.tensor([0.0, 1e-13, 1e-11, -1.0])
    factor = training_factor(gamma, torch.ones(4), 0.0)
    assert factor.dtype == torch.float32
    assert torch.equal(factor, torch.tensor([1.0, 1.0, 1e-11, -1.0]))


def test_training_factor_is_that_of_folding():
    gamma, variance = torch.randn(16), torch.rand(16) + 0.1
    assert torch.equal(training_factor(gamma, variance, 1e-5), batch_norm_factor(gamma, variance, 1e-5).float())


def test_gamma_gets_a_gradient():
    gamma = torch.randn(4, requires_grad=True)
    training_factor(gamma, torch.ones(4), 1e-5).sum().backward()
    assert torch.allclose(gamma.grad, torch.full((4,), (1 + 1e-5) ** -0.5))
