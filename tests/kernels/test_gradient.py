"""Which argument may want a gradient, and what runs when none does."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels import fake_quantize_learnable_per_tensor_affine


@pytest.mark.parametrize("wanting", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_any_of_the_first_arguments_may_want_a_gradient(wanting: tuple[int, ...]) -> None:
    tensors = [torch.tensor([0.34, -5.0, 5.0]), torch.tensor([0.1]), torch.tensor([1.0])]
    for index in wanting:
        tensors[index].requires_grad_()
    y = fake_quantize_learnable_per_tensor_affine(*tensors, -8, 7)
    assert y.requires_grad == bool(wanting)
    if wanting:
        y.sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [index in wanting for index in range(3)]


def test_no_gradient_is_kept_where_none_is_wanted() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not fake_quantize_learnable_per_tensor_affine(x, torch.ones(1), torch.zeros(1), -8, 7).requires_grad
