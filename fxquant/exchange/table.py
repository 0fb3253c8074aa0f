"""The qparams of a model as a table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fxquant.artifact.format import written_beside
from fxquant.errors import InputError, UnknownNameError, writing
from fxquant.exchange.formats import WRITERS, path_of
from fxquant.exchange.given import Means, TensorQParams, ends_of
from fxquant.graph.text_table import PrintedTable
from fxquant.registry import did_you_mean

__all__ = ["QParamsTable", "TensorQParams"]

_SHARED = 3
"""Tensors of the same qparams that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class QParamsTable(PrintedTable[TensorQParams]):
    """Lists the qparams of a model, a row for all tensors that share them. Print it, read ``rows``, or ``save`` it."""

    _HEAD = ("tensor", "kind", "scheme", "scale", "zero point", "range", "shared with")
    _ALIGN = "lllrrrl"

    rows: tuple[TensorQParams, ...]
    joined: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of a prepared model: the smallest and the largest value of each value that is joined. They say which joins stay
    float."""
    means: Mapping[str, Means] = field(default_factory=dict)
    """Of a prepared model: the means of the channels of values, which biases are corrected with."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: Literal["fxquant", "onnxruntime", "aimet-1.0.0", "aimet-2.0.0"] = "fxquant",
        overwrite: bool = False,
    ) -> None:
        """Write the table as JSON.

        Args:
            path: Where to.
            format: ``"fxquant"`` is lossless. ``"onnxruntime"``: ``TensorQuantOverrides``, with the names of quantized
                types as strings. ``"aimet-1.0.0"`` and ``"aimet-2.0.0"``: AIMET's encodings. These three hold each
                tensor that shares qparams by itself, and lose limits narrower than the bits.
            overwrite: Whether a file may stand there already.

        Raises:
            UnknownNameError: there is no such format.
            InputError: the file exists, or cannot be written; or the format cannot hold qparams of some tensor.
        """
        if format not in WRITERS:
            hint = did_you_mean(str(format), list(WRITERS))
            raise UnknownNameError(
                "unknown format of qparams", got=repr(format), expected=", ".join(WRITERS), hint=hint
            )
        place = Path(path_of(path))
        if _exists(place) and not overwrite:
            raise InputError("the file exists already", at=str(place), hint="overwrite=True takes its place")
        text = WRITERS[format](self)
        with writing("the qparams", place), written_beside(place) as part:
            Path(part).write_text(text, encoding="utf-8")

    def _cells(self, rows: Sequence[TensorQParams]) -> list[tuple[Any, ...]]:
        return [
            (
                row.name,
                row.kind,
                str(row.qparams.scheme),
                _numbers(row.qparams.scale.flatten().tolist()),
                _numbers(row.qparams.zero_point.flatten().tolist()),
                "{:.4g} to {:.4g}".format(*ends_of(row.qparams)),
                _few(row.shared),
            )
            for row in rows
        ]


def _exists(place: Path) -> bool:
    with writing("the qparams", place):  # a name may be too long to ask
        return place.exists()


def _numbers(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} … {high:.4g}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHARED} more" if len(names) > _SHARED else ""
    return ", ".join(names[:_SHARED]) + more
