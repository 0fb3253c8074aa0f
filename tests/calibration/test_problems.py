"""Faults planted into a model or its data: each is named first, in words that say what to do."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.calibration.problems import ADVICE, Problem, _moving, by_severity
from fxquant.calibration.range_history import TOLERANCE
from fxquant.errors import CalibrationError, FxQuantWarning
from tests.outputs import rounding_outputs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x).relu()).relu().mean((2, 3)))


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def images(count: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, 12, 12, generator=generator) for _ in range(count)]


def calibrated(model: nn.Module, data: list[Tensor], **options: object) -> tuple[fxq.Quantizer, list[str]]:
    """The Quantizer, and what was warned of, without hints about ranges that move: there is little data here."""
    prepared = fxq.prepare(model, torch.zeros(1, 3, 12, 12), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fxq.calibrate(prepared, data, progress=False)
    messages = [str(each.message) for each in caught if issubclass(each.category, FxQuantWarning)]
    return prepared, [message for message in messages if not message.startswith(ADVICE["moving"].what)]


def test_a_sound_model_has_no_problem(model):
    prepared, messages = calibrated(model, images() * 4)
    assert messages == []
    assert [problem.kind for problem in prepared.calibration_report().problems] == []
    assert prepared.calibration_report().settled


def test_nan_in_batch_3_is_named_with_the_batch_and_the_value_that_it_came_from(model):
    data = images()
    data[3][1, 2, 5, 5] = torch.nan
    data[5][0] = torch.inf
    prepared, messages = calibrated(model, data)
    first = prepared.calibration_report().rows[0]
    assert (first.name, first.problem.kind) == ("x", "NaN, inf")
    assert (first.first_nonfinite, first.nonfinite) == (3, 1 + 3 * 144)
    lines = messages[0].splitlines()
    assert lines[:2] == [
        "calibration met values that are inf or NaN; the qparams were chosen from the others",
        "  got:      x (stem input): 433 values, first in batch 3",
    ]
    assert "look at the batch that is named" in lines[-1]
    assert len(messages) == 1


def test_an_observer_that_was_never_fed_comes_first_and_convert_refuses(model):
    prepared = fxq.prepare(model, images(1)[0])
    prepared.observers["relu"].forward = lambda x: x
    fxq.calibrate(prepared, images(4), progress=False)
    first = prepared.calibration_report().rows[0]
    assert (first.name, first.problem.kind, first.problem.text) == ("relu", "unseen", "no batch held a finite number")
    with pytest.raises(fxq.FxQuantError, match="1 values have no range") as caught:
        fxq.convert(prepared)
    assert "relu (stem output, body input)" in str(caught.value)


def test_a_constant_tensor(model):
    prepared, messages = calibrated(model, [torch.full((4, 3, 12, 12), 0.5)] * 3)
    first = prepared.calibration_report().rows[0]
    assert (first.name, first.problem.kind, first.problem.text) == ("x", "constant", "always 0.5")
    assert first.constant
    assert messages[0].startswith(
        "calibration saw one and the same number throughout\n  got:      x (stem input): always 0.5\n"
    )


@pytest.mark.parametrize("activation", [fxq.HistogramObserver, fxq.MinMaxObserver])
def test_a_channel_that_reaches_1000(model, activation):
    with torch.no_grad():
        model.body.weight[5] *= 3000
        model.body.bias[5] *= 3000
    qconfig = fxq.QConfig(activation=activation, weight=fxq.get_default_qconfig().weight)
    prepared, messages = calibrated(model, images(), qconfig=qconfig)
    first = prepared.calibration_report().rows[0]
    assert (first.name, first.problem.kind) == ("relu_1", "outlier")
    assert first.problem.text.startswith("channel 5 reaches 1")
    lines = messages[0].splitlines()
    assert lines[0] == ADVICE["outlier"].what
    assert lines[1].startswith("  got:      relu_1 (body output, mean input): channel 5 reaches 1")


def test_one_value_of_1000_is_seen_where_extremes_count(model):
    data = images()
    data[2][1, 1, 3, 3] = 1000.0
    qconfig = fxq.QConfig(activation=fxq.MinMaxObserver, weight=fxq.get_default_qconfig().weight)
    first = calibrated(model, data, qconfig=qconfig)[0].calibration_report().rows[0]
    assert first.name == "x"


def test_one_value_of_1000_comes_first_where_a_histogram_clips_it(model):
    data = images(32)
    data[2][1, 1, 3, 3] = 1000.0
    first = calibrated(model, data)[0].calibration_report().rows[0]
    assert first.name == "x"
    assert first.problem.kind == "outlier"
    assert first.problem.text.startswith("1 of 55296 values are far out, up to 1000: 99.9 % of all stay within ")


def test_a_constant_of_the_model_is_no_problem():
    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((3, 1, 1), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * self.scale)

    prepared, messages = calibrated(Scaled().eval(), images())
    assert messages == []
    assert prepared.calibration_report()["scale"].constant
    assert prepared.calibration_report()["scale"].problem is None


def test_what_is_joined_to_larger_values_is_no_outlier():
    class Joined(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.body(self.stem(x).relu())
            return self.head(torch.cat([y[:, :12], 500 * y[:, 12:]], 1).mean((2, 3)))

    torch.manual_seed(0)
    prepared, _ = calibrated(Joined().eval(), images())
    assert "body" not in {problem.name for problem in prepared.calibration_report().problems}


def test_dead_channels_are_listed_and_warned_of_if_they_are_many(model):
    with torch.no_grad():
        model.stem.weight[2:4], model.stem.bias[2:4] = 0, -1
        few, messages = calibrated(model, images() * 4)
        assert few.calibration_report()["relu"].dead == (2, 3)
        assert few.calibration_report().rows[0].problem.text == "2 of 8 channels never changed (2, 3)"
        assert messages == []
        model.stem.weight[1:7], model.stem.bias[1:7] = 0, -1
        _, messages = calibrated(model, images() * 4)
    assert messages[0].startswith(
        "most channels never changed\n"
        "  got:      relu (stem output, body input): 6 of 8 channels never changed (1, 2, 3, …)\n"
    )


def test_ranges_that_still_move_are_shown_as_they_were_and_are(model):
    data = [x * (1 if index < 6 else 3) for index, x in enumerate(images(10))]
    prepared = fxq.prepare(model, data[0])
    with pytest.warns(FxQuantWarning, match="the ranges have not settled") as caught:
        fxq.calibrate(prepared, data, progress=False)
    message = str(caught[0].message)
    assert "x (stem input): [-" in message
    assert "after 6 of 10 batches, then [-" in message
    assert "until_stable=True" in message


def test_nothing_is_warned_of_twice(model):
    data = images(3)
    data[0][0] = torch.nan
    prepared, messages = calibrated(model, data)
    assert len(messages) == 1
    fxq.calibrate(prepared, images(3), progress=False)
    fxq.convert(prepared)


def test_convert_warns_of_what_was_only_observed(model):
    prepared = fxq.prepare(model, images(1)[0])
    prepared.observe(images(1)[0].index_fill(0, torch.tensor([0]), torch.nan))
    with pytest.warns(FxQuantWarning, match="inf or NaN"):
        fxq.convert(prepared)


def test_an_outlier_that_the_observer_clips_leaves_the_others_their_steps(model):
    data = images()
    for x in data:
        x[0, 1, 3, 3] = 1000.0
    percentile = fxq.PercentileObserver.with_args(percentile=99.0)
    qconfig = fxq.QConfig(activation=percentile, weight=fxq.get_default_qconfig().weight)
    prepared, messages = calibrated(model, data, qconfig=qconfig)
    assert messages == []
    assert prepared.calibration_report()["x"].qparams[1] < 10


def test_a_few_dead_channels_come_after_ranges_that_move():
    moving, few = Problem("a", "moving", "", 0.1), Problem("b", "dead", "", 0.1, warned=False)
    many, outlier = Problem("c", "dead", "", 0.9), Problem("d", "outlier", "", 40.0)
    order = {"a": 3, "b": 0, "c": 1, "d": 2}
    assert [each.name for each in by_severity([moving, few, many, outlier], order)] == ["d", "c", "a", "b"]


def test_values_that_never_or_lately_come_are_no_failure(model):
    prepared = fxq.prepare(model, images(1)[0], rounding_outputs())
    with pytest.raises(CalibrationError, match="11 batches of zero samples"):
        fxq.calibrate(prepared, [torch.zeros(0, 3, 12, 12)] * 11, progress=False)
    assert {problem.kind for problem in prepared.calibration_report().problems} == {"unseen"}
    with pytest.warns(FxQuantWarning, match=r"head \(head output\): nothing after 11 of 15 batches, then \["):
        fxq.calibrate(prepared, images(4), progress=False)


def test_what_the_history_calls_moved_is_told_whatever_the_last_bit_says():
    edge = 1 + float(torch.tensor(TOLERANCE))
    found = _moving("x", [(1, 0.0, 1.0), (6, 0.0, 1.0), (12, 0.0, edge / 1.0025)], 12)
    assert found is not None
    assert found.text.startswith("[0, 1] after 6 of 12 batches")
