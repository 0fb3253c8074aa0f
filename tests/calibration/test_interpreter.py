"""Observing data: what batches may look like, what is remembered, what the caller keeps."""

from __future__ import annotations

import gc
import logging
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fxquant as fxq
from fxquant.calibration.interpreter import CalibrationInterpreter
from fxquant.errors import FxQuantWarning, InputError
from tests.calibration.network import ranges
from tests.outputs import rounding_outputs
from tests.sampling import one_of


def test_observing_returns_the_float_output_to_the_bit(model):
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(model, x)
    kept = x.clone()
    with torch.no_grad():
        assert torch.equal(prepared(x), model(x))
        assert torch.equal(prepared.observe(x), model(x))
    assert torch.equal(x, kept)


def test_ranges_are_those_of_the_float_model(model):
    seen: dict[str, Tensor] = {}
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        seen["x"], seen["relu"], seen["fc"] = x, model.conv(x).relu(), model(x)
    prepared = fxq.calibrate(fxq.prepare(model, x, rounding_outputs()), [x[:2], x[2:]], progress=False)
    found = ranges(prepared)
    for name, value in seen.items():
        low, high = found[name]
        assert low == pytest.approx(float(value.min()), abs=1e-5)
        assert high == pytest.approx(float(value.max()), abs=1e-5)


def test_an_interrupt_keeps_what_was_observed(model):
    x = torch.randn(1, 3, 8, 8)

    def interrupted():
        yield x
        raise KeyboardInterrupt

    prepared = fxq.prepare(model, x)
    with pytest.raises(KeyboardInterrupt):
        fxq.calibrate(prepared, interrupted(), progress=False)
    assert ranges(prepared)["x"] == (float(x.min()), float(x.max()))
    fxq.convert(prepared)


def test_an_empty_batch_changes_nothing(model):
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    before = ranges(prepared)
    with torch.no_grad():
        out = model.fc(torch.empty(0, 4))
    linear = fxq.prepare(nn.Sequential(nn.Linear(8, 4)).eval(), torch.rand(3, 8))
    fxq.calibrate(linear, [torch.rand(3, 8)], progress=False)
    seen = ranges(linear)
    assert linear(torch.empty(0, 8)).shape == (0, 4)
    assert ranges(linear) == seen
    assert fxq.convert(linear)(torch.empty(0, 8)).shape == (0, 4)
    assert ranges(prepared) == before
    assert out.shape == (0, 2)


def test_values_are_freed_after_their_last_use(model):
    """At no time does the interpreter hold more than the values that are still to be read."""
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    alive: list[int] = []

    class Counting(CalibrationInterpreter):
        def run_node(self, n):
            alive.append(len(self.env))
            return super().run_node(n)

    with torch.no_grad():
        Counting(prepared.graph_module, {"x": torch.randn(1, 3, 8, 8)}, {}, {}).run()
    assert len(alive) == len(prepared.graph.nodes)
    assert max(alive) <= 3


def test_nothing_is_kept_between_batches(model):
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    batch = torch.randn(2, 3, 8, 8)
    fxq.calibrate(prepared, [batch], progress=False)
    gc.collect()
    before = sum(issubclass(type(o), Tensor) for o in gc.get_objects())
    fxq.calibrate(prepared, [batch] * 5, progress=False)
    gc.collect()
    assert sum(issubclass(type(o), Tensor) for o in gc.get_objects()) <= before


def test_the_callers_tensor_is_not_written_to():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).eval()
    x = torch.randn(3, 4)
    kept = x.clone()
    prepared = fxq.prepare(model, x.clone())
    prepared(x)
    assert torch.equal(x, kept)


def test_a_batch_that_does_not_run_names_the_layer_and_the_line(model):
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    with pytest.raises(InputError) as caught:
        prepared(torch.randn(1, 5, 8, 8))
    text = str(caught.value)
    assert text.startswith("this batch does not run through the model: ")
    assert "%conv" in text
    assert "network.py:" in text
    assert "got:      (float32[1, 5, 8, 8])" in text


ORDERLESS = {
    "min-max": fxq.MinMaxObserver,
    "histogram": fxq.HistogramObserver,
    "percentile": fxq.PercentileObserver,
    "mse": fxq.MSEObserver,
    "entropy": fxq.EntropyObserver,
    "min-max per channel": fxq.PerChannelMinMaxObserver.with_args(ch_axis=1),
    "histogram per channel": fxq.HistogramObserver.with_args(ch_axis=1, qscheme=torch.per_channel_affine),
}
"""Extremes and counts are sums of a kind that has no order, and no batches: exact, since they are of integers or pick
values. A moving average weighs the newest batch most, so that order and size of batches are what it is about; the mean
of a channel is a float sum, which is the same but for rounding."""


@pytest.mark.parametrize("kind", one_of(3, ORDERLESS))
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=8), seed=st.integers(0, 2**16))
def test_grids_do_not_depend_on_how_values_are_cut_into_batches_nor_on_their_order(kind, cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=generator) * torch.randint(1, 100, (40, 1), generator=generator)
    whole, parts = ORDERLESS[kind](), ORDERLESS[kind]()
    whole(x)
    bounds = [0, *sorted(cuts), 40]
    batches = [x[torch.randperm(40, generator=torch.Generator().manual_seed(seed))][a:b] for a, b in pairwise(bounds)]
    for batch in reversed(batches):
        parts(batch)
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value), name
    for one, other in zip(whole.calculate_qparams(), parts.calculate_qparams(), strict=True):
        assert torch.equal(one, other)


def test_a_moving_average_does_depend_on_the_order():
    qparams = []
    for order in ([1.0, 9.0], [9.0, 1.0]):
        observer = fxq.MovingAverageMinMaxObserver(averaging_constant=0.25)
        for value in order:
            observer(torch.tensor([0.0, value]))
        qparams.append(observer.max_val.item())
    assert qparams == [3.0, 7.0]


@pytest.mark.parametrize("size", [2, 3, 12])
def test_a_model_gets_the_same_grids_from_batches_of_any_size(model, size):
    """Values differ by float rounding from size to size, so the grids may in their last bits."""
    torch.manual_seed(0)
    x = torch.randn(12, 3, 8, 8)
    whole, parts = fxq.prepare(model, x), fxq.prepare(model, x)
    fxq.calibrate(whole, [x], progress=False)
    fxq.calibrate(parts, list(x[torch.randperm(12)].split(size)), progress=False)
    for name, (low, high) in ranges(whole).items():
        assert ranges(parts)[name] == (pytest.approx(low, rel=1e-5, abs=1e-5), pytest.approx(high, rel=1e-5, abs=1e-5))


def test_until_stable_stops_once_ranges_have_settled(model, capsys, logged):
    torch.manual_seed(0)
    x, taken = torch.randn(64, 3, 8, 8), []

    def endless():
        while True:
            taken.append(len(taken))
            yield x

    with logged.at_level(logging.INFO, "fxquant"):
        prepared = fxq.calibrate(fxq.prepare(model, x), endless(), until_stable=True)
    assert len(taken) == 8
    assert prepared.calibration_report().settled
    text = "all ranges have settled: calibration stopped after 8 batches"
    assert any(text in message for message in logged.messages)
    assert text in capsys.readouterr().err


def growing():
    """No range of it ever settles."""
    generator = torch.Generator().manual_seed(0)
    for batch in range(2000):
        yield torch.randn(1, 3, 8, 8, generator=generator) * 1.1**batch


def test_until_stable_is_bounded(model, monkeypatch):
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    with pytest.warns(FxQuantWarning, match="the ranges have not settled"):
        fxq.calibrate(prepared, growing(), until_stable=True, num_batches=12, progress=False)
    assert prepared.calibration_report().batches == 12
    monkeypatch.setattr("fxquant.quantizer.calibrate.MOST_BATCHES", 5)
    with pytest.warns(FxQuantWarning, match="the ranges have not settled"):  # again, since it was asked for
        fxq.calibrate(prepared, growing(), until_stable=True, progress=False)
    assert prepared.calibration_report().batches == 17


def test_until_stable_says_if_there_was_too_little_data_to_tell(model):
    x = torch.randn(1, 3, 8, 8)
    with pytest.warns(FxQuantWarning) as caught:
        fxq.calibrate(fxq.prepare(model, x), [x] * 3, until_stable=True, progress=False)
    assert str(caught[0].message) == (
        "calibration data ended before it could be told whether the ranges have settled\n"
        "  got:      3 batches\n"
        "  expected: at least 8"
    )


@pytest.mark.slow
def test_memory_is_the_same_after_10_and_1000_batches():
    prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(8, 4))

    def held() -> int:
        gc.collect()
        tensors = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    batch = torch.randn(8, 4)
    for _ in range(10):
        prepared.observe(batch)
    before = held()
    for _ in range(990):
        prepared.observe(batch)
    assert held() <= before
    assert prepared.calibration_report().batches == 1000


@pytest.mark.filterwarnings("error")
def test_one_batch_of_zeros_is_warned_of_by_the_users_names() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    prepared = fxq.prepare(Net().eval(), torch.zeros(4, 8))
    with pytest.warns(
        fxq.FxQuantWarning, match=r"one and the same number throughout\n  got: *x \(layer input\): always 0"
    ):
        fxq.calibrate(prepared, [torch.zeros(4, 8)], progress=False)


def test_most_channels_dead_in_one_batch_is_warned_of() -> None:
    x = torch.rand(256, 8)
    x[:, 2:] = 0.5
    prepared = fxq.prepare(nn.Sequential(nn.Linear(8, 8)).eval(), x)
    with pytest.warns(fxq.FxQuantWarning, match=r"most channels never changed\n  got: *input_1 \(0 input\): 6 of 8"):
        fxq.calibrate(prepared, [x], progress=False)


@pytest.mark.parametrize(
    "kind", [fxq.MinMaxObserver, fxq.HistogramObserver, fxq.PercentileObserver, fxq.MSEObserver, fxq.EntropyObserver]
)
def test_observers_take_no_complex_numbers(kind: type) -> None:
    with pytest.raises(
        fxq.errors.InputError, match=rf"measures float values\n  at: *{kind.__name__}\n  got: *torch.complex64"
    ):
        kind()(torch.ones(3, dtype=torch.complex64))
