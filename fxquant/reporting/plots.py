"""The pictures of the report as files for papers and notebooks, by matplotlib."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from fxquant.errors import InputError, UnknownNameError, writing
from fxquant.quantizer.quantizer import Quantizer
from fxquant.registry import did_you_mean
from fxquant.reporting.drawings import FATES
from fxquant.reporting.facts import facts
from fxquant.reporting.searches import COSTS
from fxquant.reporting.subject import subject_of

INK, QUIET, LINE = "#16202c", "#5a6675", "#d9dee5"
COLOURS = {
    "int8": "#0072b2",
    "weight": "#9a5b84",
    "border": "#4f9fcf",
    "float": "#c45500",
    "excused": "#8a8f98",
    "other": "#b3bac4",
}
"""Of fates, as on the page; the colour-blind tell them apart, and each has its label."""
WIDTH = 7.0
"""Inches: a text column of most journals, twice."""


class Plots:
    """The pictures of one model. Each method gives a ``matplotlib.figure.Figure``, which notebooks show.

    Args:
        model: As for :func:`fxquant.report`, as are ``data`` and ``results``.
        data: Yields batches.
        results: Tables of measurements.

    Raises:
        InputError, CalibrationError: As of :func:`fxquant.report`.
    """

    def __init__(
        self, model: Quantizer | nn.Module, data: Iterable[Any] | None = None, *, results: Iterable[Any] = ()
    ) -> None:
        self._facts = facts(subject_of(model), data, results)
        self.measures = {
            f"{table['title']}: {column}": {row[0]: row[place + 1] for row in table["rows"]}
            for table in self._facts["tables"]
            for place, column in enumerate(table["columns"])
            if table["numeric"][place]
        }
        """What can be drawn along the network: name -> unit -> value."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the values and weights that there is a histogram of."""
        return tuple(name for name, tensor in self._facts["tensors"].items() if "counts" in tensor)

    def coverage(self) -> Figure:
        """Return the share of the multiply-accumulates by what becomes of them."""
        figure, axis = _figure(1.5, "multiply-accumulates by what becomes of them")
        (_, becomes, macs), rows = self._columns("becomes", "MACs")
        shares = {fate: 0.0 for fate, *_ in FATES}
        for row in rows:
            shares["int8" if row[becomes].startswith("int8") else row[becomes]] += row[macs]
        total, left = sum(shares.values()) or 1.0, 0.0
        for fate, label, _ in FATES:
            share = 100 * shares[fate] / total
            if share:
                axis.barh([0], [share], left=left, color=COLOURS[fate], label=f"{label}: {share:.2f} %")
                left += share
        axis.set(yticks=[], xlim=(0, 100), xlabel="%")
        if left:
            figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        return figure

    def along(self, measure: str) -> Figure:
        """Return a measure of every unit, from the input of the network to its output.

        Raises:
            UnknownNameError: ``measures`` has none of that name.
        """
        values = _known(self.measures, measure, "measure")
        order = {node["name"]: place for place, node in enumerate(self._facts["drawings"][0]["nodes"])}
        finite = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        points = sorted((order.get(name, -1), name, value) for name, value in finite.items())
        figure, axis = _figure(2.4, measure)
        axis.plot(range(1, len(points) + 1), [value for *_, value in points], marker=".", color=COLOURS["int8"], lw=1)
        axis.set_xlabel("unit, from input to output")
        axis.grid(axis="y", color=LINE)
        return figure

    def histogram(self, tensor: str) -> Figure:
        """Draw what was seen of a value, or a weight, with its quantization range between dashed lines.

        Raises:
            UnknownNameError: ``tensors`` has none of that name.
        """
        found = _known({name: self._facts["tensors"][name] for name in self.tensors}, tensor, "tensor with a histogram")
        figure, axis = _figure(2.4, f"{tensor.partition('@')[0]}  {found.get('scheme', '')}")
        starts = [found["low"] + place * found["width"] for place in range(len(found["counts"]))]
        axis.bar(starts, found["counts"], width=found["width"], align="edge", color=COLOURS["int8"])
        for end in found.get("clip", ()):
            axis.axvline(end, color=COLOURS["float"], linestyle="--", lw=1.2)
        axis.set(yscale="log", xlabel="float value", ylabel="values")
        return figure

    def front(self, number: int = 0) -> Figure:
        """Draw the front of cost and predicted noise of a search among the results, and what was found.

        Raises:
            UnknownNameError: there is no search of that number.
        """
        searches = {str(place): each for place, each in enumerate(self._facts["searches"])}
        found = _known(searches, str(number), "search")
        figure, axis = _figure(2.8, "predicted signal to noise")
        points = [(point["costs"]["part"], point["sqnr"]) for point in found["points"]]
        drawn = [(cost, sqnr) for cost, sqnr in points if isinstance(sqnr, float)]  # infinite where all is in float
        axis.plot(*zip(*drawn, strict=True), marker=".", color=COLOURS["int8"], lw=1, label="front")
        cost = found["found"]["costs"]["part"]
        for label, sqnr, face in (("found", found["found"]["sqnr"], None), ("measured", found["measured"], "none")):
            if isinstance(sqnr, float):
                axis.plot([cost], [sqnr], "D", color=COLOURS["float"], markerfacecolor=face, label=label)
        axis.set(xlabel=COSTS["part"], ylabel="dB")
        axis.grid(axis="y", color=LINE)
        axis.legend(frameon=False, fontsize=9)
        return figure

    def save(self, folder: str | os.PathLike[str], form: str = "svg") -> tuple[Path, ...]:
        """Write all of them into a folder, which is made.

        Args:
            folder: Where to.
            form: ``svg``, ``png``, ``pdf``: what matplotlib writes.

        Returns:
            The files: ``coverage``, ``front`` for each search, one per measure, and one per tensor below ``tensors``.

        Raises:
            InputError: they cannot be written there, or matplotlib has no such form.
        """
        target, forms = Path(folder), Figure().canvas.get_supported_filetypes()
        if form not in forms:
            raise InputError(
                "matplotlib writes no such form",
                got=repr(form),
                expected=", ".join(forms),
                hint=did_you_mean(form, forms),
            )
        with writing("the plots", target, hint="save(folder) takes a folder, which need not be there"):
            return self._written(target, form)

    def _written(self, target: Path, form: str) -> tuple[Path, ...]:
        (target / "tensors").mkdir(parents=True, exist_ok=True)
        figures = {"coverage": self.coverage()}
        figures |= {_file_name(measure): self.along(measure) for measure in self.measures}
        figures |= {f"front_{number}": self.front(number) for number in range(len(self._facts["searches"]))}
        figures |= {f"tensors/{_file_name(tensor)}": self.histogram(tensor) for tensor in self.tensors}
        paths = []
        for name, figure in figures.items():
            path = target / f"{name}.{form}"
            figure.savefig(path, dpi=150)
            paths.append(path)
        return tuple(paths)

    def _columns(self, *names: str) -> tuple[tuple[int, ...], list[list[Any]]]:
        table = self._facts["tables"][0]
        return (0, *(table["columns"].index(name) + 1 for name in names)), table["rows"]


def _figure(height: float, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axis = figure.add_subplot()
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.tick_params(colors=QUIET, labelsize=8)
    axis.xaxis.label.set(color=QUIET, fontsize=9)
    axis.yaxis.label.set(color=QUIET, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LINE)
    return figure, axis


def _known(items: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in items:
        raise UnknownNameError(f"there is no {what} of that name", got=repr(name), hint=did_you_mean(name, list(items)))
    return items[name]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.@-]+", "_", name)
