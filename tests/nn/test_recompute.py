"""Tensors made anew for the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.nn.recompute import recomputed


def test_gradients_are_the_same_and_nothing_is_kept():
    source, x = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    calls = []

    def make():
        calls.append(None)
        return source.detach() * 2

    value = source * 2
    with recomputed(value, source, make):
        y = torch.nn.functional.linear(x, value)
    del value
    y.sum().backward()
    assert calls
    found = x.grad.clone(), source.grad.clone()
    x.grad = source.grad = None
    torch.nn.functional.linear(x, source * 2).sum().backward()
    assert torch.equal(found[0], x.grad)
    assert torch.equal(found[1], source.grad)


def test_a_source_that_changed_meanwhile_is_an_error():
    source, x = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    value = source * 2
    with recomputed(value, source, lambda: source.detach() * 2):
        y = torch.nn.functional.linear(x, value)
    with torch.no_grad():
        source.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_nothing_is_done_where_no_gradient_is_wanted():
    source = torch.randn(5, 3)
    with recomputed(source * 2, source, lambda: pytest.fail("called")):
        torch.nn.functional.linear(torch.randn(4, 3, requires_grad=True), source * 2).sum().backward()


def test_a_module_keeps_no_rounded_weight_and_leaves_the_rest_to_hooks_outside():
    layer = fxq.prepare_qat(nn.Sequential(nn.Linear(64, 32)).train(), torch.randn(2, 64))
    x = torch.randn(2, 64)
    kept, given = [], []

    def pack(tensor):
        kept.append(tensor)
        return len(kept) - 1

    def unpack(index):
        given.append(index)
        return kept[index]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = layer(x)
    y.sum().backward()
    own = layer.get_submodule("0").weight
    large = [tensor for tensor in kept if tensor.numel() == own.numel() and tensor.is_floating_point()]
    assert all(tensor.untyped_storage().data_ptr() == own.untyped_storage().data_ptr() for tensor in large)
    assert any(tensor.shape == x.shape for tensor in kept)
    assert set(given) == set(range(len(kept)))
    assert own.grad.abs().sum() > 0
