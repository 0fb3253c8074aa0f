from __future__ import annotations

from pathlib import Path

import pytest

import fxquant as fxq
from fxquant.errors import UnknownNameError
from fxquant.reporting.plots import COLOURS, Plots


@pytest.fixture(scope="module")
def plots(calibrated: fxq.Quantizer) -> Plots:
    return Plots(calibrated, [calibrated.example_args[0]])


@pytest.mark.slow
def test_everything_is_written_as_svg(plots: Plots, tmp_path: Path) -> None:
    files = plots.save(tmp_path / "made")
    names = {path.relative_to(tmp_path / "made").as_posix() for path in files}
    assert {"coverage.svg", "Parity_isolated_dB.svg", "tensors/conv.weight@relu.svg"} <= names
    assert len(names) == len(files) == 1 + len(plots.measures) + len(plots.tensors)
    assert all("<svg" in path.read_text(encoding="utf-8") for path in files)


def test_pictures_hold_what_was_measured(plots: Plots) -> None:
    (line,) = plots.along("Parity: isolated, dB").axes[0].lines
    assert list(line.get_ydata()) == list(plots.measures["Parity: isolated, dB"].values())
    axis = plots.histogram("x").axes[0]
    assert sum(bar.get_height() for bar in axis.patches) == 2 * 2 * 3 * 8 * 8
    low, high = (float(each.get_xdata()[0]) for each in axis.lines)
    assert low == pytest.approx(-4, abs=0.1)
    assert high == pytest.approx(4, abs=0.1)
    bars = plots.coverage().axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(100)
    assert len(COLOURS) == 6


def test_png_and_unknown_names(plots: Plots, tmp_path: Path) -> None:
    plots.coverage().savefig(tmp_path / "coverage.png")
    assert (tmp_path / "coverage.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UnknownNameError) as refusal:
        plots.histogram("rela")
    assert str(refusal.value).splitlines()[:2] == [
        "there is no tensor with a histogram of that name",
        "  got:      'rela'",
    ]
    with pytest.raises(UnknownNameError, match="there is no measure of that name"):
        plots.along("speed")


def test_the_front_of_a_search(
    calibrated: fxq.Quantizer, searched: fxq.PrecisionSearch, plots: Plots, tmp_path: Path
) -> None:
    drawn = Plots(calibrated, results=[searched])
    front, found, measured = drawn.front().axes[0].lines
    assert [float(y) for y in front.get_ydata()] == pytest.approx([point.sqnr for point in searched.pareto], rel=1e-4)
    assert float(found.get_ydata()[0]) == pytest.approx(searched.predicted, rel=1e-4)
    assert float(measured.get_ydata()[0]) == pytest.approx(searched.measured, rel=1e-4)
    drawn.measures.clear()
    drawn._facts["tensors"].clear()
    assert tmp_path / "front_0.svg" in drawn.save(tmp_path)
    with pytest.raises(UnknownNameError, match="there is no search of that name"):
        plots.front()
