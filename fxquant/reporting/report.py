"""``fxquant.report``: one HTML file with everything that is known of a model on its way to int8."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from torch import nn

from fxquant.errors import check_type
from fxquant.quantizer.quantizer import Quantizer
from fxquant.reporting.about import about_rows
from fxquant.reporting.facts import facts
from fxquant.reporting.page import file_to_write, write
from fxquant.reporting.range_tables import range_tables
from fxquant.reporting.subject import subject_of


def report(
    model: Quantizer | nn.Module,
    path: str | os.PathLike[str],
    data: Iterable[Any] | None = None,
    *,
    results: Iterable[Any] = (),
    about: Mapping[str, str] | None = None,
) -> Path:
    """Write an HTML file that shows what was decided, measured and changed. It needs a browser, and no network.

    It holds the graph, coloured by what becomes of each node or by what was measured there; ranges, histograms and
    qparams of values and weights; the graph before and after each pass, side by side; all tables; and a search.

    Args:
        model: What :func:`prepare` gave: the file shows most once it is calibrated, since it is then converted too. Or
            what :func:`prepare_qat` gave; or what :func:`convert` gave, which has neither histograms nor the float
            graph. It is not changed.
        path: The file. What stands there is overwritten; missing folders are made.
        data: Yields batches, as for :func:`calibrate`: the parity of int8 and simulation, and their noise, are
            measured on the first one, and values whose observers keep no histogram are looked at in the first eight.
            Not for a converted model.
        results: Tables to show beside: what ``compare``, ``sensitivity`` and ``profile`` gave, or the parity of
            ``convert(prepared, check=batch)``. What ``search_precision`` gave is drawn as well: its front, and the bits
            of each layer.
        about: What stands below the title: ``{"weights": "IMAGENET1K_V1", "data": "500 photographs"}``. Model, weights
            (a digest), data (a number of batches), date and versions are said without it.

    Returns:
        ``path``.

    Raises:
        InputError: ``model`` is none of these, ``data`` does not fit, one of ``results`` is no table of units, or
            the file cannot be written.
        CalibrationError: ``data`` holds no batch.

    Example:
        >>> import tempfile, torch
        >>> from fxquant.api import calibrate, prepare
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
        >>> batches = [torch.randn(8, 4)]
        >>> prepared = calibrate(prepare(model, batches[0]), batches, progress=False)
        >>> folder = tempfile.TemporaryDirectory()
        >>> report(prepared, f"{folder.name}/report.html", batches).name
        'report.html'
        >>> folder.cleanup()
    """
    file = file_to_write(path)
    check_type("results", results, Iterable, "a list of what compare, sensitivity or another measurement gave")
    check_type("about", about, (Mapping, NoneType), "{label: text}, or None")
    subject = subject_of(model)
    found = facts(subject, data, results)
    found["tables"] += range_tables(found["tensors"], found["units"])
    return write({**found, "about": about_rows(subject, about)}, file)
