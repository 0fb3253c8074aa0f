"""What autograd keeps of a ReLU before a fake-quantize module."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.fake_quantize import FakeQuantize, FusedMovingAvgObsFakeQuantize, LearnableFakeQuantize
from fxquant.fake_quantize.relu_results import keep_where_positive

KINDS = (FakeQuantize, FusedMovingAvgObsFakeQuantize, LearnableFakeQuantize)


def result_of_relu(leaf: Tensor, inplace: bool = False) -> Tensor:
    return F.relu(leaf * 1, inplace=inplace)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_are_the_same_to_the_bit(kind: type[nn.Module], inplace: bool) -> None:
    torch.manual_seed(0)
    x, found = torch.randn(4, 3, 5, 5), []
    for is_hidden in (False, True):
        layer, leaf = kind(), x.clone().requires_grad_()
        y = result_of_relu(leaf, inplace)
        relu = y.grad_fn
        z = layer(y.view_as(y) if is_hidden else y)
        kept = relu._saved_result
        assert torch.equal(kept, y) if is_hidden else set(kept.unique().tolist()) == {0.0, 1.0}
        z.square().sum().backward()
        found.append((z.detach(), leaf.grad, *(p.grad for p in layer.parameters() if p.grad is not None)))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_values_at_the_border(dtype: torch.dtype) -> None:
    x = torch.tensor([-torch.inf, -2.0, -0.0, 0.0, 1e-6, 3.0, torch.inf, torch.nan], dtype=dtype)
    found = []
    for keep in (keep_where_positive, lambda y: None):
        leaf = x.clone().requires_grad_()
        y = result_of_relu(leaf)
        keep(y)
        y.backward(torch.arange(1.0, 9.0).to(dtype))
        found.append(leaf.grad)
    assert torch.equal(*found)


def test_second_derivatives_and_graphs_that_are_kept() -> None:
    leaf = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    y = result_of_relu(leaf)
    keep_where_positive(y)
    keep_where_positive(y)  # two modules may read it
    loss = y.pow(3).sum()
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    assert torch.equal(torch.autograd.grad(first.sum(), leaf, retain_graph=True)[0], torch.tensor([0.0, 12.0, 18.0]))
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], torch.tensor([0.0, 12.0, 27.0]))


def test_what_is_not_touched() -> None:
    """Hooks of others, other functions, and results whose graph is gone."""
    layer, leaf = FakeQuantize(), torch.tensor([-1.0, 2.0], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        y = result_of_relu(leaf)
        layer(y).sum().backward()
    assert torch.equal(leaf.grad, torch.tensor([0.0, 1.0]))
    for x in (leaf, leaf.detach(), F.leaky_relu(leaf), F.relu6(leaf), y):
        keep_where_positive(x)
    layer.disable_observer()
    torch.func.grad(lambda x: layer(F.relu(x)).sum())(leaf.detach())


def test_a_training_model_frees_the_results_of_relus() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3))
    x = torch.randn(2, 3, 8, 8)
    trained, results = fxq.prepare_qat(model, x), []

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if type(given[0].grad_fn).__name__ == "ReluBackward0":
            results.append(weakref.ref(given[0].untyped_storage()))

    for module in trained.modules():
        if isinstance(module, FakeQuantize):
            module.register_forward_pre_hook(note)
    y = trained(x)

    assert [result() for result in results] == [None]
    y.sum().backward()
