"""Reads a folder of images as batches: one folder for each class, or images alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fxquant.cli.command import require
from fxquant.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
CALIBRATION, HELD_OUT = ("train", "training", "calibration"), ("val", "valid", "validation", "test")
"""Folders that hold a data set in two parts."""

RESIZED, CROPPED = 256, 224
"""The shorter side, and the square in its middle, in pixels: how torchvision's weights see an image."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, for channels R, G, B of values in [0, 1]."""
GRAY_MEAN, GRAY_STD = (0.449,), (0.226,)
"""The means of these, for images of one channel."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One file, and the number of its class, where its folder says one."""

    path: Path
    label: int | None


@dataclass(frozen=True, slots=True)
class Pictures:
    """Holds what a folder holds."""

    pictures: tuple[Picture, ...]
    """In an order that mixes classes, the same in each call."""
    classes: int
    """How many classes there are; 0 where the folder names none."""
    numbered: bool
    """Whether the names of the folders are the numbers of the classes."""


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Says what an image becomes: sizes in pixels, then ``(value - mean) / std`` for values in [0, 1]."""

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of(self, path: Path) -> Tensor:
        """Read an image: float32 [channels, height, width].

        Raises:
            InputError: it cannot be read.
        """
        from PIL import Image, UnidentifiedImageError

        mode = "L" if self.channels == 1 else "RGB"
        try:
            with Image.open(path) as image:
                (width, height), (left, top) = self._sizes(image.width, image.height)
                resized = image.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
                pixels = resized.crop((left, top, left + self.width, top + self.height)).tobytes()
        except UnidentifiedImageError as error:
            raise InputError("this file is no image", got=str(path)) from error
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError("this image cannot be read", at=str(path), got=str(error)) from error
        values = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
        scaled = values.view(self.height, self.width, self.channels).permute(2, 0, 1).float() / 255.0
        mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (self.mean, self.std))
        return ((scaled - mean) / std).contiguous()

    def _sizes(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the size to shrink an image to, its middle and a margin around it, and where the middle begins."""
        factor = max(self.height / height, self.width / width) * RESIZED / CROPPED
        new = max(round(width * factor), self.width), max(round(height * factor), self.height)
        return new, ((new[0] - self.width) // 2, (new[1] - self.height) // 2)


def preprocessing(shape: Sequence[int], mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Preprocessing:
    """Return what images become for a model whose input has a shape.

    Raises:
        InputError: the shape is no batch of images, or there are numbers for other channels.
    """
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise InputError(
            "a folder of images makes no such input",
            got="x".join(map(str, shape)),
            expected="N x 3 x height x width, or N x 1 x height x width",
            hint="--data FILE.py:function takes a function that yields batches of any kind",
        )
    channels = shape[1]
    mean = mean or (MEAN if channels == 3 else GRAY_MEAN)
    std = std or (STD if channels == 3 else GRAY_STD)
    for name, numbers in (("--mean", mean), ("--std", std)):
        if len(numbers) not in (1, channels):
            raise InputError(f"{name} has a number for each channel", got=len(numbers), expected=channels)
    if not all(std):
        raise InputError("--std is divided by", got=", ".join(map(str, std)), expected="no zero")
    return Preprocessing(channels, shape[2], shape[3], mean, std)


class ImageBatches(Sequence[Any]):
    """Holds batches of ``(images, labels)``, or of images alone; each is read anew whenever it is asked for."""

    def __init__(self, pictures: Sequence[Picture], size: int, preprocessing: Preprocessing) -> None:
        self._pictures, self._size, self._preprocessing = tuple(pictures), size, preprocessing

    def __len__(self) -> int:
        return -(-len(self._pictures) // self._size)

    def __getitem__(self, index: Any) -> Any:
        start = range(0, len(self._pictures), self._size)[index]
        some = self._pictures[start : start + self._size]
        images = torch.stack([self._preprocessing.of(picture.path) for picture in some])
        labels = [picture.label for picture in some if picture.label is not None]
        return (images, torch.tensor(labels)) if labels else images


def two_parts(folder: Path) -> tuple[Path, Path | None]:
    """Return the folder to calibrate on, and the one to measure on, if the data set comes in two parts."""
    held_out = next((folder / name for name in HELD_OUT if (folder / name).is_dir()), None)
    other = next((folder / name for name in CALIBRATION if (folder / name).is_dir()), None)
    return (other, held_out) if other is not None and held_out is not None else (folder, None)


def pictures_in(folder: Path) -> Pictures:
    """List the images of a folder: of its subfolders, which are classes, or, if these hold none, its own.

    Raises:
        InputError: it holds no image.
        SampleError: Pillow is not installed.
    """
    require("PIL")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    by_class = {name: _images(folder / name, deep=True) for name in names}
    names = [name for name in names if by_class[name]]
    numbered = bool(names) and all(name.isascii() and name.isdigit() for name in names)
    found = [
        Picture(path, int(name) if numbered else number) for number, name in enumerate(names) for path in by_class[name]
    ]
    found = found or [Picture(path, None) for path in _images(folder, deep=False)]
    if not found:
        raise InputError(
            "there are no images in this folder",
            got=str(folder),
            expected=f"files that end in {', '.join(SUFFIXES)}; in one folder for each class, if they have labels",
        )
    random.Random(0).shuffle(found)
    return Pictures(tuple(found), len(names), numbered)


def _images(folder: Path, *, deep: bool) -> list[Path]:
    paths = folder.rglob("*") if deep else folder.iterdir()
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())
