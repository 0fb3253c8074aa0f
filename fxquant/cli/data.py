"""Finds the data that a command line names: a folder of images, or a function that yields batches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from fxquant.cli.images import ImageBatches, pictures_in, preprocessing, two_parts
from fxquant.cli.models import USER_ERRORS, call_of_users, failed, load_function, parse_input
from fxquant.errors import FxQuantError, InputError

BATCH, BATCHES, MEASURED = 16, 8, 64
"""Images of a batch, batches to calibrate on, and batches to measure accuracy on, unless the command line says so."""


@dataclass(frozen=True, slots=True)
class Data:
    """Batches to calibrate on, and others to measure on."""

    calibration: Iterable[Any]
    held_out: Iterable[Any]
    """Shares nothing with these, unless ``same`` says so."""
    same: bool
    about: str
    """What there is of it, in a line."""
    classes: int | None = None
    """Of a folder: how many classes it names, where their numbers depend on it."""
    written: int | None = None
    """Of a folder: images of the batch that a file is written for, as ``--input`` says."""


def data_from(options: argparse.Namespace, batch: int = BATCH) -> Data | None:
    """Find what ``--data`` names; None if the command line names none.

    Args:
        options: Of the command line.
        batch: Images of a batch, unless the command line says so.

    Raises:
        InputError: there is no such folder, file or function, or it gives no batches.
    """
    spec: str | None = options.data
    if spec is None:
        for name in ("batch_size", "batches", "mean", "std"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} is for batches of --data", got="no --data")
        return None
    if Path(spec).is_dir():
        return _images(options, Path(spec), options.batch_size or batch)
    if ":" not in spec:
        raise InputError(
            "this names no data",
            got=repr(spec),
            expected="a folder of images, path/to/file.py:function or package.module:function, which yields batches",
        )
    for name in ("batch_size", "mean", "std"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for folders of images", at=spec)
    return _yielded(options, spec)


def _images(options: argparse.Namespace, folder: Path, size: int) -> Data:
    shapes = [tuple(parse_input(text).shape) for text in options.input or ["1x3x224x224"]]
    if len(shapes) != 1:
        raise InputError(
            "a folder of images is one input",
            got=f"{len(shapes)} inputs",
            expected="one --input",
            hint="--data FILE.py:function takes a function that yields tuples",
        )
    reading = preprocessing(shapes[0], options.mean, options.std)
    count = (options.batches or BATCHES) * size
    first, second = two_parts(folder)
    here = pictures_in(first)
    there = here if second is None else pictures_in(second)
    calibration = here.pictures[:count]
    others = here.pictures[count:] if second is None else there.pictures
    measured = (others or calibration)[: MEASURED * size]
    about = f"{folder}: {len(calibration)} images to calibrate on"
    if there.classes:
        about += f", {len(measured)} of {there.classes} classes to measure accuracy on"
    return Data(
        ImageBatches(calibration, size, reading),
        ImageBatches(measured if there.classes else (), size, reading),
        same=not others,
        about=about,
        classes=None if there.numbered or not there.classes else there.classes,
        written=shapes[0][0],
    )


def _yielded(options: argparse.Namespace, spec: str) -> Data:
    batches, function = options.batches or BATCHES, load_function(spec)
    some = Yielded(spec, function, 0, batches)
    if next(iter(some), None) is None:
        raise InputError("this function yields no batch", at=spec, expected="at least one")
    rest = Yielded(spec, function, batches, batches + MEASURED)
    same = next(iter(rest), None) is None
    return Data(some, some if same else rest, same, f"{spec}: {batches} batches to calibrate on")


@dataclass(frozen=True, slots=True)
class Yielded:
    """Some of the batches of a function, which is called anew in each round."""

    spec: str
    function: Callable[[], Any]
    start: int
    stop: int

    def __iter__(self) -> Iterator[Any]:
        found = call_of_users(self.spec, self.function, "yields batches", "making batches failed")
        if isinstance(found, nn.Module) or not isinstance(found, Iterable):
            raise InputError(
                "what this gives is no iterable of batches",
                at=self.spec,
                got=type(found).__name__,
                expected="a generator, a list or a DataLoader",
            )
        try:
            yield from islice(found, self.start, self.stop)
        except FxQuantError:
            raise
        except USER_ERRORS as error:
            raise failed("making batches failed", error) from error
