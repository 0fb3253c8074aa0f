"""MinMaxObserver and PerChannelMinMaxObserver: bit-equal to torch.ao, right by brute force, deaf to NaN, and the same
in TorchScript."""

from __future__ import annotations

import io
import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.ao.quantization import observer as ao

from fxquant.errors import InputError, SpecError
from fxquant.observers import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    ObserverBase,
    PerChannelMinMaxObserver,
)
from fxquant.plan.spec import QScheme

FLOAT32_ROUNDINGS = 4
"""Range, scale and zero point are each rounded to float32: so many units in the last place of the largest value."""

TORCH_EPS = torch.finfo(torch.float32).eps
"""Smallest scale of observers of torch.ao, unless they are told another one."""
SMALLEST = torch.finfo(torch.float32).smallest_normal

QPARAMS = (
    {"dtype": torch.quint8},
    {"dtype": torch.uint8},
    {"dtype": torch.qint8},
    {"dtype": torch.int8},
    {"dtype": torch.quint4x2},
    {"dtype": torch.int16},
    {"dtype": torch.uint16},
    {"dtype": torch.qint32, "quant_min": -32768, "quant_max": 32767},
    {"dtype": torch.qint8, "quant_min": -127, "quant_max": 127},
    {"dtype": torch.qint8, "quant_min": -8, "quant_max": 7},
    {"dtype": torch.qint8, "eps": 2**-12},
    {"dtype": torch.quint8, "quant_min": 0, "quant_max": 127},
    {"dtype": torch.quint8, "quant_min": 0, "quant_max": 255},
    {"dtype": torch.qint8, "reduce_range": True},
    {"dtype": torch.quint8, "reduce_range": True},
)


def batches(seed: int) -> list[torch.Tensor]:
    """Three batches whose scale, offset and layout depend on the seed; seed 0 has channels of zeros only."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(2, 5, 3, 4, generator=generator) * 10.0 ** (seed - 4) + seed % 3
        x[:, : 2 if seed == 0 else 0] = 0
        made.append(x.to(dtype).contiguous(memory_format=torch.channels_last if seed % 2 else torch.contiguous_format))
    return made


BATCHES = [batches(seed) for seed in range(9)]


def same_as_torch(ours: ObserverBase, peer: torch.nn.Module, data: list[torch.Tensor]) -> None:
    for x in data:
        assert ours(x) is x
        peer(x)
    scale, zero_point = ours.calculate_qparams()
    peer_scale, peer_zero_point = peer.calculate_qparams()
    assert torch.equal(ours.min_val, peer.min_val)
    assert torch.equal(ours.max_val, peer.max_val)
    assert torch.equal(scale, peer_scale)
    assert torch.equal(zero_point, peer_zero_point.to(zero_point.dtype))
    assert (scale.dtype, scale.shape) == (torch.float32, peer_scale.shape)


def torch_observer(kind: str, **arguments: object) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of reduce_range
        return getattr(ao, kind)(**arguments)


def shared(*qschemes: torch.qscheme) -> list[tuple[dict[str, object], torch.qscheme]]:
    """Grids for which torch.ao means the same.

    On symmetric unsigned grids it does only where limits are not customised, and not for quint4x2: see
    ``test_symmetric_unsigned_zero_point_is_the_upper_middle``.
    """
    plain = ({"dtype": torch.quint8}, {"dtype": torch.uint8}, {"dtype": torch.uint16})
    return [
        (qparams, qscheme)
        for qparams, qscheme in itertools.product(QPARAMS, qschemes)
        if "symmetric" not in str(qscheme) or "uint" not in str(qparams["dtype"]) or qparams in plain
    ]


@pytest.mark.parametrize(("qparams", "qscheme"), shared(torch.per_tensor_affine, torch.per_tensor_symmetric), ids=str)
def test_per_tensor_equals_torch(qparams, qscheme):
    arguments = {**qparams, "qscheme": qscheme}
    for data in BATCHES:
        same_as_torch(
            MinMaxObserver(**{"eps": TORCH_EPS, **arguments}), torch_observer("MinMaxObserver", **arguments), data
        )


@pytest.mark.parametrize(
    ("qparams", "qscheme"),
    shared(torch.per_channel_affine, torch.per_channel_symmetric, torch.per_channel_affine_float_qparams),
    ids=str,
)
def test_per_channel_equals_torch(qparams, qscheme):
    for data, ch_axis in zip(BATCHES, itertools.cycle((0, 1, 3, -1, -3)), strict=False):
        arguments = {**qparams, "qscheme": qscheme, "ch_axis": ch_axis}
        peer = torch_observer("PerChannelMinMaxObserver", **arguments)
        same_as_torch(PerChannelMinMaxObserver(**{"eps": TORCH_EPS, **arguments}), peer, data)


@pytest.mark.parametrize(
    ("limits", "middle"), [((0, 255), 128), ((0, 127), 64), ((0, 15), 8), ((1, 255), 128), (None, 128)]
)
def test_symmetric_unsigned_zero_point_is_the_upper_middle(limits, middle):
    low, high = limits or (None, None)
    observer = MinMaxObserver(torch.quint8, torch.per_tensor_symmetric, quant_min=low, quant_max=high)
    observer(torch.tensor([-1.0, 0.0, 2.0]))
    scale, zero_point = observer.calculate_qparams()
    assert zero_point.tolist() == [middle]
    steps = ((high or 255) - (low or 0)) / 2
    assert scale.tolist() == [torch.tensor(2.0).div(steps).item()]


def test_all_zero_range_has_a_usable_scale():
    activation = MinMaxObserver()
    activation(torch.zeros(8))
    scale, zero_point = activation.calculate_qparams()
    assert (scale.item(), zero_point.item()) == (SMALLEST, 0)

    weight = PerChannelMinMaxObserver(dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    weight(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    scale, zero_point = weight.calculate_qparams()
    assert scale.tolist() == [SMALLEST, torch.tensor(2 / 127.5).item()]
    assert zero_point.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("values", "zero_point"), [([3.0] * 4, 0), ([-3.0] * 4, 255), ([1.0, 2.0, 3.0], 0), ([-3.0, 0.0], 255)]
)
def test_range_is_widened_to_hold_zero(values, zero_point):
    observer = MinMaxObserver(dtype=torch.quint8)
    observer(torch.tensor(values))
    qparams = observer.qparams()
    assert qparams.scale.tolist() == [torch.tensor(3.0).div(255).item()]
    assert qparams.zero_point.tolist() == [zero_point]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_are_left_out_and_counted(bad):
    observer = MinMaxObserver()
    observer(torch.tensor([1.0, bad, 2.0]))
    observer(torch.tensor([-1.0, 3.0]))
    scale, zero_point = observer.calculate_qparams()
    assert (observer.min_val.item(), observer.max_val.item()) == (-1.0, 3.0)
    assert scale.item() == torch.tensor(4.0).div(255).item()
    assert zero_point.item() == 64
    assert observer.nonfinite_count.item() == 1


def test_per_channel_leaves_nonfinite_values_out():
    observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    observer(torch.tensor([[math.nan, 1.0], [2.0, -math.inf], [4.0, 5.0]]))
    assert observer.min_val.tolist() == [1.0, 2.0, 4.0]
    assert observer.max_val.tolist() == [1.0, 2.0, 5.0]
    assert observer.nonfinite_count.item() == 2


def test_empty_batch_changes_nothing():
    for make in (MinMaxObserver, PerChannelMinMaxObserver.with_args(ch_axis=1)):
        with_empty, without = make(), make()
        first, empty, last = torch.randn(3, 8), torch.empty(0, 8), torch.randn(2, 8)
        for x in (empty, first, empty, last):
            assert with_empty(x) is x
        for x in (first, last):
            without(x)
        assert all(map(torch.equal, with_empty.state_dict().values(), without.state_dict().values()))


def test_groups_run_along_the_dimension_after_the_axis():
    weight = torch.arange(24.0).reshape(2, 6, 2)
    observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric", group_size=3)
    observer(weight)
    assert observer.min_val.tolist() == [[0.0, 6.0], [12.0, 18.0]]
    assert observer.max_val.tolist() == [[5.0, 11.0], [17.0, 23.0]]
    qparams = observer.qparams()
    assert torch.equal(qparams.scale, torch.tensor([[5.0, 11.0], [17.0, 23.0]]) / 127.5)
    assert qparams.zero_point.shape == (2, 2)


def test_number_of_channels_must_stay():
    observer = PerChannelMinMaxObserver(ch_axis=1)
    observer(torch.randn(2, 3))
    with pytest.raises(InputError) as caught:
        observer(torch.randn(2, 4))
    assert str(caught.value) == (
        "the number of channels differs from that of earlier batches\n"
        "  got:      4 channels in a tensor of shape (2, 4)\n"
        "  expected: 3 channels"
    )


def test_granularity_is_checked():
    with pytest.raises(SpecError, match=r"one scale for the whole tensor\n  got:      torch.per_channel_affine\n"):
        MinMaxObserver(qscheme=torch.per_channel_affine)
    with pytest.raises(SpecError, match=r"a scale per channel\n  got:      torch.per_tensor_symmetric\n"):
        PerChannelMinMaxObserver(qscheme=torch.per_tensor_symmetric)
    with pytest.raises(SpecError, match="one scale for the whole tensor"):
        MinMaxObserver(scheme=QScheme(axis=0))
    with pytest.raises(SpecError, match="PerChannelMinMaxObserver cannot measure ranges at run time"):
        PerChannelMinMaxObserver(is_dynamic=True)


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=6), min_size=1, max_size=4),
    bits=st.integers(2, 16),
    signed=st.booleans(),
    symmetric=st.booleans(),
)
def test_grid_covers_what_was_seen(data, bits, signed, symmetric):
    """Every value that was seen is at most half a step from the grid, and 0 is on it."""
    observer = MinMaxObserver(scheme=QScheme(bits=bits, signed=signed, symmetric=symmetric))
    for batch in data:
        observer(torch.tensor(batch, dtype=torch.float32))
    qparams = observer.qparams()
    scale, zero_point = qparams.scale.double(), qparams.zero_point.double()
    low, high = qparams.scheme.quant_min, qparams.scheme.quant_max
    assert low <= zero_point.item() <= high
    assert torch.isfinite(scale).all()
    assert scale.item() >= SMALLEST
    values = torch.tensor([value for batch in data for value in batch], dtype=torch.float64)
    steps = values / scale + zero_point
    restored = (torch.round(steps).clamp(low, high) - zero_point) * scale
    rounding = FLOAT32_ROUNDINGS * torch.finfo(torch.float32).eps * values.abs().max()
    assert ((restored - values).abs() <= scale / 2 + rounding).all()


SCRIPTS = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")

SCRIPTED = {
    "minmax": MinMaxObserver,
    "symmetric": MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric", eps=0.125),
    "average": MovingAverageMinMaxObserver.with_args(averaging_constant=0.25),
    "per channel": PerChannelMinMaxObserver.with_args(ch_axis=1),
    "average per channel": MovingAveragePerChannelMinMaxObserver.with_args(ch_axis=-1, bits=4, averaging_constant=1),
    "float qparams": PerChannelMinMaxObserver.with_args(qscheme="per_channel_affine_float_qparams"),
}


class Asked(torch.nn.Module):
    """What a model does with an observer."""

    def __init__(self, observer: ObserverBase) -> None:
        super().__init__()
        self.observer = observer

    def forward(self, x: torch.Tensor):
        self.observer(x)
        return self.observer.calculate_qparams()


def batches_with_gaps() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(6, 10, generator=generator) * (i + 1) for i in range(3)]
    found[1][2, 3] = torch.nan
    found[2][0, 0] = torch.inf
    return [*found, torch.zeros(6, 10), torch.arange(60).reshape(6, 10)]


@SCRIPTS
@pytest.mark.parametrize("name", SCRIPTED)
def test_it_measures_and_answers_as_outside(name: str) -> None:
    eager, inside = SCRIPTED[name](), SCRIPTED[name]()
    scripted = torch.jit.script(Asked(inside))
    for x in batches_with_gaps():
        eager(x)
        right, answer = eager.calculate_qparams(), scripted(x)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(answer, right, strict=True))
    state = {name.removeprefix("observer."): value for name, value in scripted.state_dict().items()}
    assert state.keys() == eager.state_dict().keys()
    assert all(torch.equal(value, state[key]) for key, value in eager.state_dict().items())


@SCRIPTS
def test_it_is_saved_and_loaded() -> None:
    scripted = torch.jit.script(Asked(MinMaxObserver()))
    scripted(torch.tensor([-1.0, 2.0]))
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    scale, _ = torch.jit.load(file)(torch.tensor([0.0]))
    assert scale.item() == pytest.approx(3 / 255)


@SCRIPTS
def test_no_answer_without_data() -> None:
    with pytest.raises(torch.jit.Error, match="has seen no data"):
        torch.jit.script(Asked(MinMaxObserver()))(torch.empty(0))


@SCRIPTS
def test_an_observer_that_needs_python_says_so() -> None:
    with pytest.raises(torch.jit.Error, match="this observer cannot measure in TorchScript"):
        torch.jit.script(Asked(HistogramObserver()))(torch.ones(3))
