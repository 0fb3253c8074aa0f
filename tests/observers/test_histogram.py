"""HistogramObserver: the least squared error by brute force, exact counts, nothing that grows."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fxquant.errors import CalibrationError, InputError, SpecError
from fxquant.observers import (
    EntropyObserver,
    HistogramObserver,
    MinMaxObserver,
    MSEObserver,
    PercentileObserver,
    choose_qparams,
)
from fxquant.observers.bins import Bins
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.plan.spec import QScheme
from tests.sampling import one_of

ABOVE_BRUTE_FORCE = 1.05
"""Times the smallest error that brute force over the values themselves finds: a histogram knows them to a bin."""
SAME_SCALE = 0.1
"""Relative difference of scales that a handful of zeros before the data may make."""

SCHEMES = (
    QScheme(signed=False),
    QScheme(symmetric=True),
    QScheme(bits=4, signed=False),
    QScheme(bits=4, symmetric=True),
    QScheme(bits=2),
    QScheme(bits=12),
    QScheme(bits=16, signed=False),
    QScheme(bits=16, symmetric=True),
)


def datasets() -> dict[str, Tensor]:
    torch.manual_seed(0)
    normal = torch.randn(2000)
    return {
        "normal": normal,
        "relu": F.relu(normal),
        "relu6": F.relu6(6 * normal),
        "hardswish": F.hardswish(3 * normal),
        "uniform": torch.rand(2000) * 3 - 1,
        "lognormal": (1.5 * normal).exp(),
        "cauchy": torch.randn(2000) / torch.randn(2000),
        "outlier": torch.cat([torch.randn(9999), torch.tensor([1000.0])]),
        "far from 0": normal + 8,
        "below 0": -torch.rand(2000) - 3,
        "two bumps": torch.cat([0.01 * normal, 20 + 5 * normal[:100]]),
    }


DATA = datasets()


def squared_error(x: Tensor, low: float, high: float, scheme: QScheme) -> float:
    """Mean, in float64, of the values themselves."""
    qparams = choose_qparams(torch.tensor(low), torch.tensor(high), scheme)
    scale, zero_point, x = qparams.scale.double(), qparams.zero_point.double(), x.double()
    q = (torch.round(x / scale) + zero_point).clamp(scheme.quant_min, scheme.quant_max)
    return float(((q - zero_point) * scale - x).square().mean())


def ranges(x: Tensor, scheme: QScheme) -> Iterator[tuple[float, float]]:
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    many = [k / 100 for k in range(1, 101)]
    if scheme.symmetric:
        yield from ((-part * max(-low, high), part * max(-low, high)) for part in many)
    elif low == 0 or high == 0:
        yield from ((part * low, part * high) for part in many)
    else:
        parts = [k / 12 for k in range(1, 13)] + [2.0**-k for k in range(4, 10)]
        yield from ((a * low, b * high) for a, b in itertools.product(parts, parts))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "scheme"),
    one_of(3, [pytest.param(name, scheme, id=f"{scheme}-{name}") for scheme in SCHEMES for name in DATA]),
)
def test_error_is_the_smallest_that_brute_force_finds(name, scheme):
    x = DATA[name]
    observer = HistogramObserver(scheme=scheme)
    for part in x.split(1700):
        observer(part)
    low, high = map(float, observer.chosen_range())
    smallest = min(squared_error(x, *ends, scheme) for ends in ranges(x, scheme))
    assert squared_error(x, low, high, scheme) <= ABOVE_BRUTE_FORCE * smallest
    assert x.min() <= low <= high <= x.max()


def next_to(x: Tensor, seed: int) -> Tensor:
    """The values, some a bit smaller or larger in the last place: what another machine makes of the same formula."""
    bits = torch.randint(-1, 2, x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    return torch.where(x == 0, x, (x.view(torch.int32) + bits).view(torch.float32))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [HistogramObserver, MSEObserver, EntropyObserver])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["even", "mirrored", "normal", "relu6"])
def test_last_bits_do_not_decide(kind, bits, name):
    """Ranges that mirror each other cost the same, and the values -2 and 2 lie on the edge of a bin."""
    even = torch.arange(-191.5, 192) / 95.75
    x = {"even": torch.cat([even, 2 * even]), "mirrored": torch.cat([DATA["normal"], -DATA["normal"]])}.get(name)
    x = DATA[name] if x is None else x
    chosen = []
    for seed in range(8):
        observer = kind(bits=bits)
        observer(next_to(x, seed))
        chosen.append(torch.stack(observer.chosen_range()))
    for ends in chosen[1:]:
        torch.testing.assert_close(ends, chosen[0], rtol=1e-5, atol=0)


def test_no_worse_than_torch():
    from torch.ao.quantization.observer import HistogramObserver as Peer

    for x in DATA.values():
        peer, ours = Peer(), HistogramObserver()
        errors = []
        for observer in (peer, ours):
            observer(x)
            scale, zero_point = observer.calculate_qparams()
            y = torch.fake_quantize_per_tensor_affine(x, scale, zero_point.int(), 0, 255)
            errors.append(float((y.double() - x).square().mean()))
        assert errors[1] <= ABOVE_BRUTE_FORCE * errors[0]


@pytest.mark.parametrize("kind", [HistogramObserver, PercentileObserver, MSEObserver, EntropyObserver])
def test_values_that_are_all_alike(kind):
    for value, zero_point in ((3.0, 0), (-3.0, 255)):
        observer = kind()
        for _ in range(2):
            observer(torch.full((8,), value))
        assert observer.counts.sum() == 16
        scale, zero = observer.calculate_qparams()
        assert scale.tolist() == [torch.tensor(3.0).div(255).item()]
        assert zero.tolist() == [zero_point]
    zeros = kind()
    zeros(torch.zeros(8))
    scale, zero = zeros.calculate_qparams()
    assert (scale.item(), zero.item()) == (SMALLEST_SCALE, 0)
    weight = kind(dtype=torch.int8, qscheme="per_channel_symmetric", ch_axis=0)
    weight(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    scale, zero = weight.calculate_qparams()
    assert scale[0].item() == SMALLEST_SCALE
    assert 0 < scale[1].item() <= torch.tensor(2 / 127.5).item()
    assert zero.tolist() == [0, 0]


@pytest.mark.parametrize("first", [torch.zeros(8), torch.tensor([0.0, 1e-30]), torch.tensor([1e-45, -1e-45])], ids=str)
def test_a_first_batch_of_nothing_much(first):
    data = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    observer, alone = HistogramObserver(), HistogramObserver()
    observer(first)
    observer(data)
    alone(data)
    assert observer.counts.sum() == first.numel() + 1000
    assert observer.counts.shape == (2048,)
    expected = alone.qparams().scale.item()
    assert abs(observer.qparams().scale.item() - expected) <= SAME_SCALE * expected


def test_batches_do_not_matter():
    x = torch.randn(3000, generator=torch.Generator().manual_seed(2)) * torch.linspace(1e-6, 1e6, 3000)
    whole, parts = HistogramObserver(), HistogramObserver()
    whole(x)
    for part in x.flip(0).split(7):
        parts(part)
    assert all(map(torch.equal, whole.state_dict().values(), parts.state_dict().values()))


@pytest.mark.parametrize("kind", [HistogramObserver, PercentileObserver, MSEObserver, EntropyObserver])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_are_left_out_and_counted(kind, bad):
    observer, clean = kind(), kind()
    observer(torch.tensor([1.0, bad, 2.0]))
    observer(torch.tensor([-1.0, 3.0]))
    clean(torch.tensor([1.0, 2.0, -1.0, 3.0]))
    assert observer.nonfinite_count.item() == 1
    assert all(map(torch.equal, observer.calculate_qparams(), clean.calculate_qparams()))
    assert (observer.min_val.item(), observer.max_val.item()) == (-1.0, 3.0)
    nothing = kind()
    nothing(torch.tensor([bad, bad]))
    with pytest.raises(CalibrationError, match="no finite value was observed"):
        nothing.calculate_qparams()


def test_empty_batches_change_nothing():
    for make in (HistogramObserver, HistogramObserver.with_args(ch_axis=1)):
        with_empty, without = make(), make()
        first, last = torch.randn(3, 8), torch.randn(2, 8)
        for x in (torch.empty(0, 8), first, torch.empty(0, 8), last):
            assert with_empty(x) is x
        for x in (first, last):
            without(x)
        assert all(map(torch.equal, with_empty.state_dict().values(), without.state_dict().values()))


@pytest.mark.parametrize("kind", [HistogramObserver, PercentileObserver, MSEObserver, EntropyObserver])
@pytest.mark.parametrize("scheme", [QScheme(signed=False), QScheme(bits=4, symmetric=True)], ids=str)
def test_channels_and_groups_are_observed_one_by_one(kind, scheme):
    x = torch.randn(4, 6, 50, generator=torch.Generator().manual_seed(5)) * torch.arange(1.0, 7.0)[:, None]
    channels = kind(bins=128, scheme=replace(scheme, axis=1))
    groups = kind(bins=128, scheme=replace(scheme, axis=0, group_size=3))
    for part in x.split(2):
        channels(part.contiguous(memory_format=torch.contiguous_format))
    groups(x)
    for whole in (channels, groups):  # an axis counted from the end is the same one
        twin = kind(bins=128, scheme=replace(whole.scheme, axis=whole.scheme.axis - 3))
        twin(x)
        assert all(map(torch.equal, twin.state_dict().values(), whole.state_dict().values()))
        assert all(map(torch.equal, twin.calculate_qparams(), whole.calculate_qparams()))
    for channel in range(6):
        alone = kind(bins=128, scheme=scheme)
        alone(x[:, channel])
        assert torch.equal(channels.counts[channel], alone.counts)
        assert torch.equal(channels.qparams().scale[channel], alone.qparams().scale[0])
    assert groups.counts.shape == (4, 2, 128)
    assert groups.qparams().scale.shape == (4, 2)
    for row, group in itertools.product(range(4), range(2)):
        alone = kind(bins=128, scheme=scheme)
        alone(x[row, 3 * group : 3 * group + 3])
        assert torch.equal(groups.qparams().scale[row, group], alone.qparams().scale[0])


def test_two_observers_become_one():
    torch.manual_seed(1)
    one, other, both = (HistogramObserver(ch_axis=0) for _ in range(3))
    a, b = torch.randn(3, 500), torch.randn(3, 700) * 100
    b[0, 0] = math.nan
    one.absorb(other)  # neither has seen anything
    other(b)
    one.absorb(other)
    one.absorb(HistogramObserver(ch_axis=0))
    one(a)
    both(a)
    both(b)
    assert all(map(torch.equal, one.state_dict().values(), both.state_dict().values()))
    with pytest.raises(InputError, match=r"different sizes cannot be merged\n  got:      512\n  expected: 2048"):
        HistogramObserver().absorb(HistogramObserver(512))
    few = HistogramObserver(ch_axis=0)
    few(a[:2])
    with pytest.raises(InputError, match="number of channels differs"):
        one.absorb(few)


@pytest.mark.parametrize("make", [HistogramObserver, EntropyObserver.with_args(ch_axis=0, bins=64)], ids=repr)
def test_state_goes_into_a_fresh_observer(make):
    observer, fresh = make(), make()
    observer(torch.randn(3, 40))
    file = io.BytesIO()
    torch.save(observer.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for twin in (fresh, copy.deepcopy(observer), pickle.loads(pickle.dumps(observer))):
        assert list(twin.state_dict()) == ["eps", "min_val", "max_val", "nonfinite_count", "counts"]
        assert all(map(torch.equal, twin.state_dict().values(), observer.state_dict().values()))
        assert all(map(torch.equal, twin.calculate_qparams(), observer.calculate_qparams()))
        twin(torch.full((3, 40), 100.0))
        assert not torch.equal(twin.max_val, observer.max_val)
    observer.reset_min_max_vals()
    assert all(map(torch.equal, observer.state_dict().values(), make().state_dict().values()))
    with pytest.raises(CalibrationError, match=r"observed|seen no data"):
        observer.calculate_qparams()


def test_a_state_of_torch_is_read_into_our_bins():
    """The middle of each of its bins says which of ours the values go to; a histogram per channel torch has none."""
    from torch.ao.quantization.observer import HistogramObserver as Peer

    peer = Peer()
    x = torch.randn(50)
    peer(x)
    observer = HistogramObserver()
    observer.load_state_dict(peer.state_dict())
    assert observer.counts.sum() == 50
    assert (observer.min_val, observer.max_val) == (x.min(), x.max())
    bins = Bins.of(observer.counts, observer.min_val, observer.max_val)
    for share in (0.1, 0.5, 0.9):
        value = float(x.sort().values[round(50 * share) - 1])
        assert float(bins.quantile(share)) == pytest.approx(value, abs=2 * float(bins.width))
    with pytest.raises(RuntimeError, match=r"Missing key.*counts"):
        HistogramObserver(ch_axis=0).load_state_dict(peer.state_dict())


def test_integers_and_casts():
    observer = HistogramObserver().half()
    observer(torch.tensor([[0, 200], [7, 9]]))
    observer(torch.tensor([1.5], dtype=torch.float16))
    assert observer.counts.sum() == 5
    assert (observer.counts.dtype, observer.min_val.dtype) == (torch.int64, torch.float32)


def test_arguments_are_checked():
    with pytest.raises(SpecError, match=r"bins is out of range\n  got:      8\n  expected: 16 to 65536"):
        HistogramObserver(bins=8)
    with pytest.raises(SpecError, match="one scale for the whole tensor"):
        HistogramObserver(qscheme=torch.per_channel_affine)
    with pytest.raises(SpecError, match="EntropyObserver cannot measure ranges at run time"):
        EntropyObserver(is_dynamic=True)
    observer = HistogramObserver(2048, torch.qint8, torch.per_tensor_symmetric, False, -127, 127)
    assert (observer.dtype, observer.quant_min, observer.bins, observer.ch_axis) == (torch.qint8, -127, 2048, None)


def test_a_larger_power_clips_less():
    x = torch.randn(10000, generator=torch.Generator().manual_seed(0))
    ends = []
    for power in (1.0, 2.0, 4.0, 8.0):
        observer = HistogramObserver(bits=4, power=power)
        observer(x)
        ends.append(observer.chosen_range()[1].item())
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]
    with pytest.raises(SpecError, match=r"power is out of range\n  got:      9\n  expected: 1 to 8"):
        HistogramObserver(power=9)


def pool(observers: list[HistogramObserver]) -> None:
    states = [copy.deepcopy(observer.state_dict()) for observer in observers]
    for turn, observer in enumerate(observers):
        observer.pool(states[turn:] + states[:turn])


@pytest.mark.parametrize("arguments", [{}, {"ch_axis": 0}, {"ch_axis": 0, "group_size": 4}], ids=str)
def test_parts_of_the_data_are_pooled_to_what_one_observer_would_count(arguments):
    """Twice: what was pooled the first time counts once the second time."""
    torch.manual_seed(0)
    whole, parts = HistogramObserver(**arguments), [HistogramObserver(**arguments) for _ in range(3)]
    for scale in (1.0, 10.0):
        for part in parts[1:]:  # one has nothing to see
            x = torch.randn(5, 8) * scale
            x[0, 0] = math.inf
            part(x), whole(x)
        pool(parts)
        for part in parts:
            assert all(torch.equal(value, part.state_dict()[name]) for name, value in whole.state_dict().items())
    parts[0].reset_min_max_vals()
    parts[1].load_state_dict(whole.state_dict())
    pool(parts[:2])
    assert torch.equal(parts[0].counts, whole.counts)


def test_observers_that_saw_nothing_pool_to_nothing():
    parts = [HistogramObserver(ch_axis=0), HistogramObserver(ch_axis=0)]
    pool(parts)
    parts[0](torch.ones(2, 3))
    pool(parts)
    assert torch.equal(parts[1].counts, parts[0].counts)
    assert parts[1].counts.sum() == 6


@pytest.mark.parametrize("kind", [HistogramObserver, MinMaxObserver])
def test_what_was_pooled_counts_once_after_it_was_saved_and_loaded(kind):
    parts = [kind(), kind()]
    for part in parts:
        part(torch.tensor([1.0, math.nan, 2.0]))
    pool(parts)
    loaded = [kind(), kind()]
    for part in loaded:
        part.load_state_dict(parts[0].state_dict())
    loaded[0](torch.tensor([3.0, math.inf]))
    pool(loaded)
    for part in loaded:
        assert part.nonfinite_count == 3
        assert part.max_val == 3
        if kind is HistogramObserver:
            assert part.counts.sum() == 5


def test_the_range_is_searched_for_once():
    observer, searches = HistogramObserver(), []
    choose = observer.choose
    observer.choose = lambda bins: searches.append(bins) or choose(bins)
    observer(torch.randn(1000))
    first = observer.qparams()
    assert torch.equal(observer.qparams().scale, first.scale)
    assert len(searches) == 1
    observer(torch.tensor([50.0]))
    assert not torch.equal(observer.qparams().scale, first.scale)
    assert len(searches) == 2
    observer.power = 8.0
    observer.qparams()
    observer.load_state_dict(HistogramObserver().state_dict())
    with pytest.raises(CalibrationError):
        observer.qparams()
    assert len(searches) == 3


def test_a_chosen_range_belongs_to_the_caller():
    observer = HistogramObserver()
    observer(torch.rand(100))
    kept = observer.chosen_range()[1].clone()
    observer.chosen_range()[1].fill_(7.0)
    assert torch.equal(observer.chosen_range()[1], kept)
