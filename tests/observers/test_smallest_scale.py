"""What the smallest scale costs: counted in steps by hand."""

from __future__ import annotations

import pytest
import torch

from fxquant.observers import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver, PlaceholderObserver
from fxquant.observers.smallest_scale import below_smallest_scale

EPS = 2.0**-12


@pytest.mark.parametrize("kind", [MinMaxObserver, HistogramObserver])
def test_the_steps_that_are_left_are_counted(kind: type) -> None:
    observer = kind(eps=EPS)
    observer(torch.tensor([-3 * EPS, 5 * EPS]))
    found = below_smallest_scale(observer)
    assert found is not None
    assert found.text == ("-0.000732 to 0.00122 is 8.0 of 255 steps: the observer's eps= keeps scales above 0.000244")
    assert found.unused == pytest.approx(255 / 8)


def test_of_channels_the_worst_is_named() -> None:
    observer = PerChannelMinMaxObserver(dtype=torch.int8, qscheme="per_channel_symmetric", eps=EPS)
    observer(torch.tensor([[1.0, -1.0], [4 * EPS, 0.0], [0.0, 0.0], [0.0, 2 * EPS]]))
    found = below_smallest_scale(observer)
    assert found is not None
    assert found.text.startswith("channel 3: 0 to 0.000488 is 4.0 of 255 steps")


@pytest.mark.parametrize("values", [[0.0, 0.0], [0.0, 64 * EPS], [-1.0, 1.0]])
def test_zeros_and_what_has_steps_enough_lose_nothing(values: list[float]) -> None:
    observer = MinMaxObserver(eps=EPS)
    observer(torch.tensor(values))
    assert below_smallest_scale(observer) is None


def test_where_nothing_is_known_nothing_is_said() -> None:
    for observer in (MinMaxObserver(), PerChannelMinMaxObserver(), PlaceholderObserver()):
        assert below_smallest_scale(observer) is None
