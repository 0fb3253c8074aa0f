"""The demo's picture: what both networks see in the photographs, and what int8 costs and saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from PIL import Image

from fxquant.demo.comparison import Comparison

INK, QUIET, FLOAT, INT8, WRONG = "#1e293b", "#94a3b8", "#94a3b8", "#0d9488", "#c2410c"
COLUMNS = 5


def save_picture(
    path: Path, title: str, images: Sequence[Image.Image], categories: Sequence[str], found: Comparison
) -> None:
    """Draw ``found`` into a PNG file.

    Args:
        path: The file. Its folder exists.
        title: The heading's first half; the picture adds the outcome.
        images: What the networks saw, one per label.
        categories: Names of the classes.
        found: The results.
    """
    figure = Figure(figsize=(17, 10), dpi=100, facecolor="white")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.62, 1), wspace=0)
    _photographs(halves[0], images, categories, found)
    _facts(halves[1], found)
    figure.text(0.016, 0.962, title, fontsize=19, weight="bold", color=INK, va="center")
    figure.text(0.016, 0.927, _outcome(found), fontsize=13, color=INT8, va="center")
    figure.savefig(path)


def _outcome(found: Comparison) -> str:
    count, right = len(found.labels), found.correct(1)
    return (
        f"{right['int8']} of {count} right in int8, {right['float']} in float  ·  same answer on {found.agreement}  ·  "
        f"{found.speed_up:.1f}× faster  ·  {found.shrinkage:.1f}× smaller  ·  {found.sqnr:.1f} dB SQNR"
    )


def _photographs(
    figure: SubFigure, images: Sequence[Image.Image], categories: Sequence[str], found: Comparison
) -> None:
    rows = -(-len(images) // COLUMNS)
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flat
    figure.subplots_adjust(left=0.025, right=0.985, top=0.885, bottom=0.085, wspace=0.08, hspace=0.36)
    answers = {name: found.best(name) for name in ("float", "int8")}
    for index, axis in enumerate(axes):
        axis.axis("off")
        if index >= len(images):
            continue
        axis.imshow(images[index])
        label = int(found.labels[index])
        for line, name in enumerate(("float", "int8")):
            chosen, confidence = answers[name][index]
            right = chosen == label
            text = f"{name:<5} {confidence:4.0%} {_shorten(categories[chosen])}"
            colour = WRONG if not right else INT8 if name == "int8" else INK
            _caption(axis, line, text, colour)
        if any(answers[name][index][0] != label for name in answers):
            _caption(axis, 2, f"label      {_shorten(categories[label])}", QUIET)


def _caption(axis: Axes, line: int, text: str, colour: str) -> None:
    y = -0.045 - 0.085 * line
    axis.text(0, y, text, transform=axis.transAxes, fontsize=8.5, color=colour, va="top", family="monospace")


def _shorten(name: str, length: int = 17) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _facts(figure: SubFigure, found: Comparison) -> None:
    grid = figure.add_gridspec(3, 2, height_ratios=(0.5, 1.05, 1.15), hspace=0.42, wspace=0.55)
    figure.subplots_adjust(left=0.105, right=0.965, top=0.885, bottom=0.085)
    _bars(figure.add_subplot(grid[0, 0]), "one image, ms", found.milliseconds, "{:.1f}")
    _bars(figure.add_subplot(grid[0, 1]), "file, MB", {k: v / 1e6 for k, v in found.file_bytes.items()}, "{:.1f}")
    _scatter(figure.add_subplot(grid[1, :]), found)
    _layers(figure.add_subplot(grid[2, :]), found)


def _bars(axis: Axes, title: str, values: dict[str, float], form: str) -> None:
    names = ("float", "int8")
    bars = axis.barh([1, 0], [values[name] for name in names], color=(FLOAT, INT8), height=0.62)
    axis.bar_label(bars, labels=[form.format(values[name]) for name in names], padding=4, fontsize=11, color=INK)
    axis.set_yticks([1, 0], names)
    axis.set_xlim(0, 1.28 * max(values.values()))
    axis.set_xticks([])
    _dress(axis, title, ("left",))


def _scatter(axis: Axes, found: Comparison) -> None:
    x, y = found.float_logits.flatten(), found.int8_logits.flatten()
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    axis.plot([low, high], [low, high], color=QUIET, linewidth=1, zorder=1)
    axis.scatter(x, y, s=4, alpha=0.25, color=INT8, linewidths=0, rasterized=True, zorder=2)
    axis.set_xlabel("logit in float", color=INK)
    axis.set_ylabel("logit in int8", color=INK)
    _dress(axis, f"all {x.numel():,} logits: {found.sqnr:.1f} dB SQNR", ("left", "bottom"))


def _layers(axis: Axes, found: Comparison) -> None:
    values = [value for _, value in found.layers]
    axis.bar(range(len(values)), values, width=0.8, color=INT8)
    axis.set_xlim(-0.7, max(len(values), 1) - 0.3)
    if values:
        worst = min(range(len(values)), key=values.__getitem__)
        axis.patches[worst].set_color(WRONG)
        note = f"lowest: {found.layers[worst][0]}, {values[worst]:.1f} dB"
        axis.text(1, 1.02, note, transform=axis.transAxes, ha="right", va="bottom", fontsize=9, color=WRONG)
    axis.set_xlabel("layer, from input to output", color=INK)
    axis.set_ylabel("dB", color=INK)
    _dress(axis, "SQNR after each int8 layer", ("left", "bottom"))


def _dress(axis: Axes, title: str, spines: tuple[str, ...]) -> None:
    axis.set_title(title, loc="left", fontsize=12, weight="bold", color=INK)
    axis.tick_params(colors=INK, length=0 if spines == ("left",) else 3, labelsize=9.5)
    for name, spine in axis.spines.items():
        spine.set_visible(name in spines)
        spine.set_color(QUIET)
