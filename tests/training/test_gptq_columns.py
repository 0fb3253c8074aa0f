"""Columns are rounded one by one, and the others make up for it: against least squares, and all roundings there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fxquant.plan.spec import QParams, QScheme
from fxquant.training.gptq_columns import inverse_factor, round_columns
from fxquant.training.weight_matrix import WeightMatrix

SCHEME = QScheme(bits=4, symmetric=True, axis=0)


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def _qparams(rows: int, scale: float = 0.25) -> QParams:
    return QParams(SCHEME, torch.full((rows,), scale), torch.zeros(rows, dtype=torch.int32))


def matrix_of(weight: Tensor, scale: float = 0.25) -> WeightMatrix:
    return WeightMatrix.of(weight, _qparams(len(weight), scale), 1)


def correlated(inputs: int, seed: int) -> Tensor:
    """Rows of inputs that go together, float64 [40, inputs]."""
    return (drawn(40, inputs, seed=seed) @ drawn(inputs, inputs, seed=seed + 100)).double()


def by_least_squares(weight: Tensor, x: Tensor, order: list[int], scale: float) -> Tensor:
    """Round an input, then solve anew for all that are left."""
    target, found = x @ weight.double().T, torch.zeros_like(weight, dtype=torch.float64)
    now = weight.double().clone()
    for place, column in enumerate(order):
        found[:, column] = (now[:, column] / scale).round().clamp(-8, 7)
        rest, fixed = order[place + 1 :], order[: place + 1]
        if rest:
            left = target - x[:, fixed] @ (found[:, fixed] * scale).T
            now[:, rest] = torch.linalg.lstsq(x[:, rest], left).solution.T
    return found


@pytest.mark.parametrize("order", ["activation", "given"])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_least_squares_for_those_that_are_left(seed: int, order: str) -> None:
    weight, x = drawn(5, 6, seed=seed), correlated(6, seed)
    products = (x.T @ x)[None]
    found = round_columns(matrix_of(weight), products, 1e-12, order)
    assert found is not None
    turns = (-x.square().sum(0)).argsort().tolist() if order == "activation" else list(range(6))
    assert torch.equal(found[0][0], by_least_squares(weight, x, turns, 0.25))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = drawn(5, 12, seed=1), correlated(12, 1)
    products = (x.T @ x)[None]
    whole = round_columns(matrix_of(weight), products, 0.01, "activation")
    monkeypatch.setattr("fxquant.training.gptq_columns.BLOCK", 5)
    parts = round_columns(matrix_of(weight), products, 0.01, "activation")
    assert whole is not None
    assert parts is not None
    assert torch.equal(whole[0], parts[0])


@pytest.mark.parametrize("inputs", [2, 3])
def test_against_all_roundings(inputs: int) -> None:
    """It is no search: the best of all is found most of the time, and what is found is better than the nearest."""
    best_found, gained, total = 0, 0, 20
    for seed in range(total):
        weight, x = drawn(1, inputs, seed=seed), correlated(inputs, seed)
        matrix, products = matrix_of(weight), (x.T @ x)[None]
        found = round_columns(matrix, products, 1e-6, "activation")
        assert found is not None
        steps = torch.arange(-8.0, 8.0).double()
        roundings = torch.cartesian_prod(*[steps] * inputs)[None]
        each = WeightMatrix.of(weight.expand(len(roundings[0]), -1), _qparams(len(roundings[0])), 1)
        errors = each.errors(roundings, products)[0].tolist()
        error, nearest = (float(matrix.errors(each, products)) for each in (found[0], matrix.nearest))
        assert error >= min(errors) * (1 - 1e-9)
        best_found += error <= min(errors) * (1 + 1e-9)
        gained += error <= nearest
    assert best_found >= 0.7 * total
    assert gained >= 0.9 * total


def test_two_inputs_that_are_one() -> None:
    """0.4 + 0.4 of the same value is nearer to 1 than to 0 + 0."""
    found = round_columns(matrix_of(torch.tensor([[0.4, 0.4]]), 1.0), torch.ones(1, 2, 2).double(), 0.01, "given")
    assert found is not None
    assert found[0].tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize("scheme", [SCHEME, QScheme(bits=4, signed=False, axis=0)])
def test_an_input_that_is_always_zero_gets_the_weight_zero(scheme: QScheme) -> None:
    x = correlated(4, 3)
    x[:, 2] = 0
    zero_point = torch.full((3,), 0 if scheme.signed else 7, dtype=torch.int32)
    matrix = WeightMatrix.of(drawn(3, 4), QParams(scheme, torch.full((3,), 0.25), zero_point), 1)
    found = round_columns(matrix, (x.T @ x)[None], 0.01, "activation")
    assert found is not None
    assert found[0][0, :, 2].tolist() == [float(zero_point[0])] * 3
    alone = round_columns(matrix, torch.zeros(1, 4, 4).double(), 0.01, "activation")
    assert alone is not None
    assert bool((alone[0] == zero_point[0]).all())


def test_damping_rises_until_the_products_can_be_factored() -> None:
    nearly = torch.tensor([[1.0, 1.05], [1.05, 1.0]]).double()[None]
    squares, turns = nearly.diagonal(dim1=1, dim2=2), torch.arange(2)[None]
    found = inverse_factor(nearly, squares, turns, 0.01)
    assert found is not None
    factor, used = found
    assert used == pytest.approx(0.1)
    damped = nearly + 0.1 * torch.eye(2)
    assert torch.allclose(factor.transpose(1, 2) @ factor, torch.linalg.inv(damped))
    assert torch.equal(factor, factor.triu())
    assert inverse_factor(torch.tensor([[[1.0, 3.0], [3.0, 1.0]]]).double(), squares, turns, 0.01) is None


@pytest.mark.parametrize("symmetric", [True, False])
def test_runs_of_inputs_get_their_scale_when_their_turn_comes(symmetric: bool) -> None:
    scheme = QScheme(bits=4, symmetric=symmetric, axis=0, group_size=4)
    weight, x = drawn(3, 12), correlated(12, 5)
    zero_point = torch.zeros(3, 3, dtype=torch.int32)
    matrix = WeightMatrix.of(weight, QParams(scheme, torch.full((3, 3), 0.2), zero_point), 1)
    before, products = matrix.scale.clone(), (x.T @ x)[None]
    found = round_columns(matrix, products, 0.01, "activation")
    assert found is not None
    runs = matrix.scale.unflatten(2, (3, 4))
    assert torch.equal(runs, runs[..., :1].expand_as(runs))
    assert not torch.equal(matrix.scale, before)
    assert bool(((found[0] >= -8) & (found[0] <= 7)).all())
    assert float(matrix.errors(found[0], products).sum()) < float(matrix.errors(matrix.nearest, products).sum())
