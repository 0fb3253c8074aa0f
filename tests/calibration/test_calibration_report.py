"""The table of a calibration, as people read it."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.calibration.calibration_report import LEGEND, WIDTH
from fxquant.errors import CalibrationError, UnknownNameError
from fxquant.observers import ObserverBase, choose_qparams, default_per_channel_weight_observer
from fxquant.plan.spec import QScheme
from tests.outputs import rounding_outputs


@pytest.fixture(scope="module")
def prepared() -> fxq.Quantizer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    data = [torch.rand(4, 3, 8, 8) for _ in range(8)]
    data[2][0, 0, 0, 0] = torch.nan
    made = fxq.prepare(model, data[0], rounding_outputs())
    with pytest.warns(fxq.FxQuantWarning):
        fxq.calibrate(made, data, progress=False)
    return made


def test_the_table_fits_a_terminal_and_names_the_worst_first(prepared):
    text = str(prepared.calibration_report())
    assert max(map(len, text.splitlines())) <= WIDTH + 40  # sentences below the table may be longer
    table, below = text.split(LEGEND)
    assert max(map(len, table.splitlines())) <= WIDTH
    assert re.split(r"\s{2,}", table.splitlines()[0].strip()) == [
        "value",
        "seen",
        "quantized",
        "settled",
        "clipped",
        "outliers",
        "dead",
        "problem",
    ]
    assert table.splitlines()[2].startswith("0 input ")
    assert re.search(r"8 batches: \d of 3 ranges have settled, 3 values have a problem\.", below)
    assert "NaN, inf: input_1 (0 input): 1 values, first in batch 2" in below


def test_rows_say_what_the_observers_say(prepared):
    report = prepared.calibration_report()
    assert {row.name for row in report} == {name for name in prepared.observers if "@" not in name}
    for row in report:
        observer, qparams = prepared.observers[row.name], prepared.observers[row.name].qparams()
        assert (row.low, row.high) == (float(observer.min_val), float(observer.max_val))
        assert row.qparams[1] == pytest.approx(float((qparams.scheme.quant_max - qparams.zero_point) * qparams.scale))
        assert row.course[-1][0] == 8
        assert row is not report["_1"] or (row.channels, row.dead) == (4, ())


class LargestMagnitude(ObserverBase):
    """A user's observer, which keeps no ``min_val`` and ``max_val``."""

    def __init__(self) -> None:
        super().__init__(QScheme(signed=False), dtype=torch.uint8)
        self.register_buffer("top", torch.zeros(1))

    def update(self, x):
        self.top.copy_(torch.maximum(self.top, x.abs().amax()))

    def qparams(self):
        if not self.top:
            raise CalibrationError("nothing was seen")
        return choose_qparams(-self.top, self.top, self.scheme)


def test_of_an_observer_without_extremes_it_shows_the_qparams():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    qconfig = fxq.QConfig(activation=LargestMagnitude, weight=default_per_channel_weight_observer)
    prepared = fxq.prepare(model, torch.zeros(1, 3, 8, 8), qconfig)
    for row in prepared.calibration_report():
        assert (row.qparams, row.settled_after, row.problem) == (None, 0, None)
    data = [torch.rand(4, 3, 8, 8) for _ in range(12)]
    fxq.calibrate(prepared, data, progress=False, until_stable=True)
    report = prepared.calibration_report()
    assert 8 <= report.batches < len(data)  # so it was known when all had settled
    text, row = str(report), report["input_1"]
    assert "nothing" not in text
    assert math.isnan(row.low)
    top = float(prepared.observers["input_1"].top)
    assert row.qparams == pytest.approx((-top, top), rel=0.01)
    assert row.course[-1][1:] == pytest.approx(row.qparams)
    assert (row.settled_after, row.settled) == (1, True)
    assert re.search(r"0 input +- +-1, 0\.99\d +1 +- ", text)


def test_a_range_of_such_an_observer_that_moves_is_named():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).eval()
    qconfig = fxq.QConfig(activation=LargestMagnitude, weight=default_per_channel_weight_observer)
    prepared = fxq.prepare(model, torch.zeros(1, 4), qconfig)
    with pytest.warns(fxq.FxQuantWarning, match="have not settled"):
        fxq.calibrate(prepared, [torch.full((2, 4), 2.0**n) for n in range(10)], progress=False)
    assert prepared.calibration_report()["input_1"].problem.kind == "moving"


def test_before_calibration_everything_is_unseen():
    report = fxq.prepare(nn.Linear(4, 4).eval(), torch.randn(2, 4), rounding_outputs()).calibration_report()
    assert [(row.problem.kind, row.qparams, row.settled_after) for row in report] == [("unseen", None, 0)] * 2
    assert "nothing" in str(report)


def test_notebooks_get_a_table(prepared):
    html = prepared.calibration_report()._repr_html_()
    assert html.count("<tr>") == 4
    assert "first in batch" not in html
    assert "input_1 (0 input)" in html


def test_a_state_dict_and_pickle_keep_the_report(prepared, tmp_path):
    expected = str(prepared.calibration_report())
    torch.save(prepared, tmp_path / "prepared.pt")
    assert str(torch.load(tmp_path / "prepared.pt", weights_only=False).calibration_report()) == expected
    fresh = fxq.prepare(prepared.graph_module, torch.rand(4, 3, 8, 8), rounding_outputs())
    fresh.load_state_dict(prepared.state_dict())
    assert len(fresh.calibration_report()) == 3


def test_a_state_from_before_there_was_a_report_can_be_loaded(prepared):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    fresh = fxq.prepare(model, torch.rand(4, 3, 8, 8), rounding_outputs())
    old = {name: value for name, value in prepared.state_dict().items() if not name.startswith("calibration_stat")}
    assert len(old) < len(prepared.state_dict())
    fresh.load_state_dict(old)
    assert torch.equal(fresh.observers["_1"].counts, prepared.observers["_1"].counts)


def test_values_below_the_smallest_scale_are_named_first_and_warned_of():
    model, data = nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(4, 2)).eval(), torch.rand(64, 4) * 1e-6
    with torch.no_grad():
        model[0].bias.zero_()

    def found(**options):
        observer = fxq.MinMaxObserver.with_args(**options)
        weight = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme=torch.per_channel_symmetric)
        qconfig = fxq.QConfig(activation=observer, weight=weight)
        prepared = fxq.calibrate(fxq.prepare(model, data, rounding_outputs(qconfig)), [data], progress=False)
        return prepared.calibration_report()

    with pytest.warns(fxq.FxQuantWarning, match=r"few quantized values\n  got:      input_1 \(0 input\)") as caught:
        report = found(eps=2.0**-23)
    assert len(caught) == 1
    assert [row.problem.kind for row in report.worst(2)] == ["tiny", "tiny"]
    text = report["input_1"].problem.text
    assert re.fullmatch(
        r"[\d.e-]+ to [\d.e-]+ is 8\.\d of 255 steps: the observer's eps= keeps scales above 1.19e-07", text
    )
    assert [row.problem for row in found()] == [None] * 3


def test_long_names_keep_their_end():
    block = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    model = nn.Sequential()
    model.add_module("a_name_that_is_far_too_long_for_a_column", block)
    prepared = fxq.prepare(model.eval(), torch.rand(2, 4), rounding_outputs())
    fxq.calibrate(prepared, [torch.rand(64, 4) for _ in range(2)], progress=False)
    names = [line.split("  ")[0] for line in str(prepared.calibration_report()).splitlines()[2:5]]
    assert {name[0] for name in names} == {"…"}
    assert len(set(names)) == 3


def test_an_unknown_value_is_refused_by_the_nearest_name(prepared):
    report = prepared.calibration_report()
    assert report["input_1"].name == "input_1"
    with pytest.raises(UnknownNameError) as caught:
        report["input1"]
    assert str(caught.value) == (
        "no value of that name was observed\n  got:      'input1'\n  hint:     did you mean 'input_1'?"
    )
