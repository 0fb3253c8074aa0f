"""One weight learns on samples, and keeps what lowers the error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from fxquant.fake_quantize import AdaRoundFakeQuantize
from fxquant.observers import MinMaxObserver
from fxquant.training.rounding_steps import Learning
from fxquant.training.unit_learning import learn, turn_single_values
from fxquant.training.unit_samples import Samples
from tests.sampling import one_of

WEIGHT = torch.tensor([[0.35, 0.4, 0.45, 0.42]])
"""On a grid of step 1, where the best sum is no sum of nearest steps."""


class Sums(Samples):
    """The input is 1 everywhere: all that counts is the sum of the weights."""

    def __init__(self) -> None:
        super().__init__([torch.ones(1)])

    def draw(self, rows: int, generator: Generator) -> Tensor:
        return torch.ones(rows, 4)

    def loss(self, weight: Tensor, drawn: Any) -> Tensor:
        return (drawn @ (weight - WEIGHT).t()).square().sum(1).mean()

    def all(self) -> Iterator[tuple[Tensor, int]]:
        yield torch.ones(1, 4), 1
        yield torch.ones(3, 4), 3


def rounding() -> AdaRoundFakeQuantize:
    module = AdaRoundFakeQuantize(MinMaxObserver, bits=4, dtype=torch.int8, qscheme="per_tensor_symmetric")
    module(WEIGHT)
    module.set_qparams(torch.ones(1), torch.zeros(1))
    module.disable_observer()
    module.initialize(WEIGHT)
    return module


def test_it_learns_which_to_round_up() -> None:
    module, steps = rounding(), []
    learning = Learning(iterations=300, learning_rate=0.01, regularization=1e-6)  # in a sum, all weights pull alike
    before, after = learn(module, WEIGHT, Sums(), learning, Generator().manual_seed(0), lambda: steps.append(1))
    assert before == pytest.approx(1.62**2, rel=1e-5)
    assert after == pytest.approx(0.38**2, rel=1e-5)
    assert int(module.integers(WEIGHT).sum()) == 2
    assert not module.is_on("use_soft_rounding")
    assert len(steps) == 300
    assert module.V.grad is None


@pytest.mark.parametrize("values", one_of(3, [[0.4] * 4, [0.3] * 6, [0.25] * 8, [0.45] * 16, [-0.4] * 5]), ids=str)
def test_weights_that_are_all_alike_are_rounded_apart(values: list[float]) -> None:
    """By symmetry all have one slope; the best sum takes some up and others down."""
    weight = torch.tensor([values])

    class Alike(Sums):
        def draw(self, rows: int, generator: Generator) -> Tensor:
            return torch.ones(rows, len(values))

        def loss(self, given: Tensor, drawn: Any) -> Tensor:
            return (drawn @ (given - weight).t()).square().sum(1).mean()

        def all(self) -> Iterator[tuple[Tensor, int]]:
            yield torch.ones(2, len(values)), 2

    best = abs(sum(values) - round(sum(values)))
    for seed in range(3):
        module = AdaRoundFakeQuantize(MinMaxObserver, bits=4, dtype=torch.int8, qscheme="per_tensor_symmetric")
        module(weight)
        module.set_qparams(torch.ones(1), torch.zeros(1))
        module.disable_observer()
        module.initialize(weight)
        generator = Generator().manual_seed(seed)
        _, after = learn(module, weight, Alike(), Learning(iterations=100), generator, lambda: None)
        assert after == pytest.approx(best**2, abs=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_of_each_output_channel_single_values_are_turned(axis: int) -> None:
    weight = torch.rand(6, 6, generator=Generator().manual_seed(0))
    inputs = torch.ones(4, 6)

    class Product(Sums):
        def loss(self, given: Tensor, drawn: Any) -> Tensor:
            error = given - weight
            return (drawn @ (error.t() if axis == 0 else error)).square().sum(1).mean()

    module = AdaRoundFakeQuantize(MinMaxObserver, bits=4, dtype=torch.int8, qscheme="per_tensor_symmetric")
    module(weight)
    module.set_qparams(torch.ones(1), torch.zeros(1))
    module.disable_observer()
    module.initialize(weight)
    module.set_soft_rounding(False)
    turn_single_values(module, weight, Product(), inputs, axis)
    sums = (module(weight).detach() - weight).sum(1 - axis)
    assert float(sums.abs().max()) <= 0.5  # the nearest whole number to the sum of six


def test_what_does_not_lower_the_error_is_not_kept() -> None:
    class Elsewhere(Sums):
        def loss(self, weight: Tensor, drawn: Any) -> Tensor:
            # where the step is learned, everything pulls up
            return (drawn @ (weight - 10).t()).square().mean() if weight.requires_grad else super().loss(weight, drawn)

    module = rounding()
    at_first = module.V.detach().clone()
    learning = Learning(iterations=100, learning_rate=0.1)
    before, after = learn(module, WEIGHT, Elsewhere(), learning, Generator(), lambda: None)
    assert before == after
    assert torch.equal(module.V, at_first)
