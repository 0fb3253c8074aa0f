"""Strides of axes with one element, which may be anything, are what contiguous tensors have."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.one_element import contiguous_at_ones, one_element_strides
from tests.fuzz.source import draw, seeded


def test_strides():
    assert contiguous_at_ones((1, 1, 8, 12), (96, 1, 12, 1)) == [96, 96, 12, 1]
    assert contiguous_at_ones((2, 1, 8, 12), (96, 7, 12, 1)) == [96, 96, 12, 1]
    assert contiguous_at_ones((2, 4, 1, 1), (4, 1, 9, 9)) == [4, 1, 1, 1]
    assert contiguous_at_ones((2, 4, 3, 2), (24, 1, 8, 4)) == [24, 1, 8, 4]


def test_a_convolution_of_one_channel_hangs_on_nothing_else():
    layer = seeded(795136, nn.Conv2d(1, 8, 3))
    x = draw(1, 1, 1, 8, 12)
    other = x.as_strided(x.shape, (96, 1, 12, 1))  # the same values in the same memory
    with one_element_strides():
        assert torch.equal(layer(x), layer(other))


def test_what_is_written_in_place_stays_written():
    x = draw(1, 1, 1, 8, 12).as_strided((1, 1, 8, 12), (96, 1, 12, 1))
    expected = F.relu(x.clone())
    with one_element_strides():
        F.relu(x, inplace=True)
        x.add_(1)
    assert torch.equal(x, expected + 1)
