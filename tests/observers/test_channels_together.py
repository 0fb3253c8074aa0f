"""Observers that search for a range find the same for a channel, whether it is searched alone or among others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.observers import EntropyObserver, HistogramObserver, MSEObserver, PercentileObserver
from fxquant.observers.bins import Bins
from fxquant.observers.histogram import choose_together
from fxquant.plan.spec import QScheme
from tests.sampling import one_of

OBSERVERS = {
    "mse": MSEObserver,
    "mse, power 2.4": lambda **others: MSEObserver(2.4, 37, **others),
    "histogram": HistogramObserver,
    "entropy": EntropyObserver,
    "percentile": lambda **others: PercentileObserver(99.0, **others),
}
SCHEMES = (
    QScheme(bits=4, symmetric=True, axis=0),
    QScheme(signed=False, axis=0),
    QScheme(bits=2, symmetric=True, axis=0, limits=(-1, 1)),
    QScheme(bits=3, symmetric=True, axis=0, power_of_two=True),
)


def channels(size: int) -> Tensor:
    """Random ones, constant ones, and such whose values are zero, on one side of it, tiny, huge, infinite, or far."""
    values = torch.randn(13, size, generator=torch.Generator().manual_seed(size))
    rows = values.unbind()
    rare = torch.cat([rows[5][:-1] * 0.01, torch.tensor([100.0])])
    infinite = torch.cat([rows[6][:-2], torch.tensor([float("inf"), float("-inf")])])
    one_of_zeros = torch.where(torch.arange(size) < size - 1, 0.0, rows[7])
    one_sided = (rows[1].relu(), rows[2].exp(), rows[8] + 6, -rows[9].abs() - 3)
    constant = (torch.full((size,), 0.3), torch.full((size,), -7.0), torch.zeros(size))
    integers = (3 * rows[12]).round()
    return torch.stack(
        [rows[0], *one_sided, *constant, rare, infinite, one_of_zeros, rows[10] * 1e-38, rows[11] * 1e37, integers]
    )


@pytest.mark.parametrize("scheme", one_of(3, SCHEMES), ids=str)
@pytest.mark.parametrize("make", OBSERVERS.values(), ids=OBSERVERS.keys())
def test_channels_are_searched_as_if_each_were_alone(make: Callable[..., HistogramObserver], scheme: QScheme):
    for bins, size in ((256, 50), (16, 9)):
        together = make(bins=bins, scheme=scheme)
        together(channels(size))
        low, high = together.chosen_range()
        assert bool((low.isfinite() & high.isfinite()).all())
        for channel, state in enumerate(zip(together.counts, together.min_val, together.max_val, strict=True)):
            alone = together.choose(Bins.of(*state))
            assert (low[channel].item(), high[channel].item()) == tuple(end.float().item() for end in alone), channel


@pytest.mark.parametrize("scheme", [QScheme(bits=8, signed=False), QScheme(bits=4, symmetric=True)], ids=str)
def test_observers_are_searched_as_if_each_were_alone(monkeypatch: pytest.MonkeyPatch, scheme: QScheme) -> None:
    def made() -> list[HistogramObserver]:
        observers = [HistogramObserver(scheme=scheme) for _ in range(15)]
        observers += [HistogramObserver(256, scheme=scheme), HistogramObserver(scheme=scheme, power=4.0)]
        for observer, values in zip(observers, [*channels(300), *channels(40)], strict=False):
            observer(values)
        unseen, channelwise = HistogramObserver(scheme=scheme), HistogramObserver(scheme=SCHEMES[0])
        channelwise(channels(20))
        loaded = HistogramObserver(scheme=scheme)  # from a state in which something is infinite
        loaded(torch.ones(3))
        loaded.max_val.fill_(torch.inf)
        return [*observers[:14], *observers[15:], MSEObserver(scheme=scheme), unseen, channelwise, loaded]

    alone, together = made(), made()
    searches = []
    choose = HistogramObserver.choose
    monkeypatch.setattr(HistogramObserver, "choose", lambda self, bins: searches.append(bins) or choose(self, bins))
    choose_together([*together, torch.nn.Identity()])
    assert [tuple(bins.low.shape) for bins in searches] == [(14,), (1,), (1,)]
    searches.clear()
    ranges = [observer.chosen_range() for observer in together[:16]]
    assert searches == []
    for ours, observer in zip(ranges, alone, strict=False):
        assert all(map(torch.equal, ours, observer.chosen_range()))
    together[0](torch.tensor([1000.0]))  # what was found holds for what was seen then
    assert together[0].chosen_range()[1] > ranges[0][1]


def test_groups_are_searched_as_channels_are():
    grouped = MSEObserver(scheme=QScheme(bits=4, symmetric=True, axis=0, group_size=25))
    grouped(channels(50))
    single = MSEObserver(scheme=QScheme(bits=4, symmetric=True, axis=0))
    single(channels(50).reshape(-1, 25))
    for ours, theirs in zip(grouped.chosen_range(), single.chosen_range(), strict=True):
        assert torch.equal(ours.flatten(), theirs)


def test_more_than_fits_at_a_time(monkeypatch):
    observer = MSEObserver(scheme=SCHEMES[0])
    observer(channels(50))
    expected = observer.chosen_range()
    monkeypatch.setattr("fxquant.observers.bins._ELEMENTS", 100)  # a histogram with some of its candidates
    again = MSEObserver(scheme=SCHEMES[0])
    again(channels(50))
    assert all(map(torch.equal, again.chosen_range(), expected))


def test_one_search_whatever_the_number_of_channels(monkeypatch):
    calls = []
    monkeypatch.setattr(MSEObserver, "choose", lambda self, bins: calls.append(bins) or (bins.low, bins.high))
    observer = MSEObserver(scheme=SCHEMES[0])
    observer(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
    observer.chosen_range()
    assert [each.low.shape for each in calls] == [(40,)]
