"""A grid applied to a tensor, for every granularity."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fxquant.errors import InputError
from fxquant.fake_quantize.qparams import fake_quantize, from_integers, to_integers
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import QScheme

SCHEMES = (
    QScheme(signed=False),
    QScheme(symmetric=True),
    QScheme(bits=4, limits=(-7, 7)),
    QScheme(bits=12),
    QScheme(bits=16, signed=False),
    QScheme(symmetric=True, axis=0),
    QScheme(axis=-1, signed=False),
    QScheme(axis=1, bits=3),
    QScheme(axis=0, group_size=3),
    QScheme(axis=1, group_size=2, symmetric=True),
    QScheme(axis=-2, group_size=2, bits=2),
    QScheme(axis=0, signed=False, float_qparams=True),
    QScheme(bits=4, axis=0, group_size=3, signed=False, float_qparams=True),
)


def sample(scheme: QScheme) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(0)) * 3
    observer = (MinMaxObserver if scheme.axis is None else PerChannelMinMaxObserver)(scheme=scheme)
    observer(x * 0.8)  # so that something is clipped
    return x, *observer.calculate_qparams()


def loop(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, scheme: QScheme) -> torch.Tensor:
    """The integers by a loop over the runs of values that share a scale."""
    q = torch.empty(x.shape, dtype=torch.int64)
    axis = None if scheme.axis is None else scheme.axis % x.dim()
    for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        where: tuple[int, ...] = (0,) if axis is None else (index[axis],)
        if scheme.group_size:
            where += (index[axis + 1] // scheme.group_size,)
        steps = x[tuple(index)] * (1.0 / scale[where])
        steps = (
            torch.round(steps + zero_point[where]) if scheme.float_qparams else torch.round(steps) + zero_point[where]
        )
        q[tuple(index)] = int(steps.clamp(scheme.quant_min, scheme.quant_max))
    return q


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_equals_a_loop(scheme):
    x, scale, zero_point = sample(scheme)
    right = loop(x, scale, zero_point, scheme)
    q = to_integers(x, scale, zero_point, scheme)
    assert q.dtype == scheme.dtype
    assert torch.equal(q.long(), right)
    real = from_integers(q, scale, zero_point, scheme)
    assert real.dtype == torch.float32
    assert torch.equal(fake_quantize(x, scale, zero_point, scheme), real)
    assert (real - x).abs().max() > 0


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_gradient_is_straight_through_inside_the_limits(scheme):
    x, scale, zero_point = sample(scheme)
    x.requires_grad_()
    fake_quantize(x, scale, zero_point, scheme).backward(torch.full_like(x, 2.0))
    wide = replace(scheme, bits=16, signed=True, limits=None)
    free = loop(x.detach(), scale, zero_point, wide)
    inside = (free >= scheme.quant_min) & (free <= scheme.quant_max)
    if scheme.bits < 16:
        assert torch.equal(x.grad, 2.0 * inside)
        assert not inside.all()
    assert set(x.grad.unique().tolist()) <= {0.0, 2.0}


def test_layout_is_kept():
    x = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    for scheme in (QScheme(), QScheme(axis=1)):
        size = 1 if scheme.axis is None else 4
        y = fake_quantize(x, torch.full((size,), 0.1), torch.zeros(size, dtype=torch.int32), scheme)
        assert y.is_contiguous(memory_format=torch.channels_last)


def test_values_that_do_not_divide_into_groups():
    scheme = QScheme(axis=0, group_size=4)
    with pytest.raises(InputError, match="does not divide into groups"):
        fake_quantize(torch.randn(2, 6), torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int32), scheme)
