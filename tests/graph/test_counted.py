"""Multiply-accumulates of what runs, against those that torch counts (as two operations each), or a formula."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import conv_transpose2d
from torch.utils.flop_counter import FlopCounterMode
from torchvision.ops import deform_conv2d

from fxquant.graph.counted import products_counted

A, B, C = (torch.rand(shape) for shape in ((3, 4), (4, 5), (2, 3, 4)))
IMAGE, KERNEL = torch.rand(2, 4, 9, 7), torch.rand(6, 2, 3, 3)
QUERY, KEY, VALUE = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8), torch.rand(2, 3, 7, 8)


def counted(run: Callable[[], object]) -> int:
    with torch.no_grad(), products_counted() as found:
        run()
    assert not found.unknown
    return found.count


BY_TORCH: dict[str, Callable[[], object]] = {
    "mm": lambda: A @ B,
    "bmm": lambda: torch.bmm(C, C.mT),
    "addmm": lambda: torch.addmm(torch.rand(5), A, B),
    "baddbmm": lambda: torch.baddbmm(torch.rand(2, 3, 3), C, C.mT),
    "linear": lambda: F.linear(C, B.T, torch.rand(5)),
    "einsum": lambda: torch.einsum("bij,jk->bik", C, B),
    "conv": lambda: F.conv2d(IMAGE, KERNEL, stride=2, padding=1, groups=2),
    "conv, transposed": lambda: conv_transpose2d(IMAGE, torch.rand(4, 2, 3, 3), stride=2, groups=2),
    "conv, 1-D": lambda: F.conv1d(IMAGE[0], torch.rand(5, 9, 2)),
    "vmap": lambda: torch.vmap(torch.mm, in_dims=(0, None))(C, B),
}


@pytest.mark.parametrize("run", BY_TORCH.values(), ids=BY_TORCH.keys())
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
def test_as_torch_counts(run: Callable[[], object], inference: bool) -> None:
    with FlopCounterMode(display=False) as counter:
        run()
    with torch.inference_mode() if inference else nullcontext():
        assert counted(run) == counter.get_total_flops() // 2 > 0


BY_HAND: dict[str, tuple[Callable[[], object], int]] = {
    "mv": (lambda: A @ B[:, 0], 3 * 4),
    "addmv": (lambda: torch.addmv(torch.rand(3), A, B[:, 0]), 3 * 4),
    "dot": (lambda: A[0] @ A[1], 4),
    "addbmm": (lambda: torch.addbmm(torch.rand(3, 3), C, C.mT), 2 * 3 * 3 * 4),
    "attention": (lambda: F.scaled_dot_product_attention(QUERY, KEY, VALUE), 2 * 3 * 5 * 7 * (8 + 8)),
    "bilinear": (lambda: F.bilinear(torch.rand(2, 3), torch.rand(2, 4), torch.rand(5, 3, 4)), 2 * 5 * 3 * 4),
    "deform_conv2d": (
        lambda: deform_conv2d(IMAGE[:1], torch.zeros(1, 18, 7, 5), torch.rand(6, 4, 3, 3)),
        6 * 7 * 5 * 4 * 9,
    ),
    "sums, views and tables": (lambda: (A.T + A.T).sum() + F.embedding(torch.tensor([1]), A).relu().mean(), 0),
}


@pytest.mark.parametrize(("run", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_what_torch_does_not_count(run: Callable[[], object], expected: int) -> None:
    assert counted(run) == expected


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase], layers: int) -> None:
    layer = kind(4, 6, num_layers=layers, bidirectional=True).eval()
    matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert counted(lambda: layer(torch.rand(5, 3, 4))) == 5 * 3 * matrices


@pytest.mark.parametrize("fast", [True, False])
def test_attention_that_torch_runs_in_one_piece_or_in_parts(fast: bool) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    attention, layer = nn.MultiheadAttention(8, 2).eval(), nn.TransformerEncoderLayer(8, 2, 16).eval()
    x = torch.rand(5, 2, 8)
    try:
        torch.backends.mha.set_fastpath_enabled(fast)
        products = 4 * 10 * 8 * 8 + 2 * 10 * 5 * 8
        assert counted(lambda: attention(x, x, x)) == products
        assert counted(lambda: layer(x)) == products + 2 * 10 * 8 * 16
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize(
    "lead", [lambda: A.numpy(), lambda: A.tolist(), lambda: A.__array__(), lambda: torch.from_dlpack(A)]
)
def test_what_leaves_torch_is_unknown(lead: Callable[[], object]) -> None:
    with products_counted() as found:
        lead()
    assert list(found.unknown) != []
    assert found.count == 0
