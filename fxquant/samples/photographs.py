"""Photographs: twenty with an ImageNet label for tests, and crops of others for calibration."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as transforms

from fxquant.samples.archives import Archive

FOOLBOX = Archive("foolbox==3.3.4", "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb")
SCIKIT_IMAGE = Archive(
    "scikit-image==0.26.0", "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af", pure=False
)
SCIKIT_LEARN = Archive(
    "scikit-learn==1.9.1", "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df", pure=False
)

_CALIBRATION_PHOTOGRAPHS = (
    (SCIKIT_IMAGE, "skimage/data/astronaut.png"),
    (SCIKIT_IMAGE, "skimage/data/camera.png"),
    (SCIKIT_IMAGE, "skimage/data/chelsea.png"),
    (SCIKIT_IMAGE, "skimage/data/coffee.png"),
    (SCIKIT_IMAGE, "skimage/data/motorcycle_left.png"),
    (SCIKIT_IMAGE, "skimage/data/rocket.jpg"),
    (SCIKIT_LEARN, "sklearn/datasets/images/china.jpg"),
    (SCIKIT_LEARN, "sklearn/datasets/images/flower.jpg"),
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, per channel R, G, B, for values in [0, 1]."""
RESIZE, CROP = 256, 224
"""The shorter side, and the square in its middle, in pixels: what torchvision's weights were tested with."""


@dataclass(frozen=True, slots=True)
class Photograph:
    """One picture with its label."""

    name: str
    image: Image.Image
    label: int
    """Index of the ImageNet class, 0 to 999."""


def labelled_photographs() -> list[Photograph]:
    """Return the twenty ImageNet pictures of foolbox, in the order of their names."""
    return [
        Photograph(match[0], _open(FOOLBOX, member), int(match[1]))
        for member in FOOLBOX.members("foolbox/data/imagenet_")
        if (match := re.search(r"imagenet_\d+_(\d+)\.jpg$", member))
    ]


def labelled_batch(side: int = CROP) -> tuple[Tensor, Tensor]:
    """Return the same as ``(images, labels)``: float32 [20, 3, side, side], normalised, and int64 [20]."""
    photographs = labelled_photographs()
    return to_batch([each.image for each in photographs], side), torch.tensor([each.label for each in photographs])


def calibration_batches(batch_size: int = 16, num_batches: int = 6, seed: int = 0, side: int = CROP) -> list[Tensor]:
    """Random crops of eight photographs that share nothing with the labelled ones.

    Args:
        batch_size: Images per batch.
        num_batches: How many batches. Every photograph comes up equally often.
        seed: Of the crops.
        side: Pixels that they are brought to.

    Returns:
        ``num_batches`` tensors, float32 [batch_size, 3, side, side], normalised.
    """
    photographs = [_open(archive, member) for archive, member in _CALIBRATION_PHOTOGRAPHS]
    choice = random.Random(seed)
    total = batch_size * num_batches
    crops = [_random_crop(photographs[index % len(photographs)], choice) for index in range(total)]
    choice.shuffle(crops)
    return list(to_batch(crops, side).split(batch_size))


def to_batch(images: Sequence[Image.Image], side: int = CROP) -> Tensor:
    """Resize, crop the middle, scale to [0, 1] and normalise: float32 [N, 3, side, side]."""
    pixels = torch.stack([transforms.pil_to_tensor(cropped(image, side)) for image in images])
    return transforms.normalize(pixels.float().div_(255.0), list(MEAN), list(STD), inplace=True)


def cropped(image: Image.Image, side: int = CROP) -> Image.Image:
    """Crop a picture to what a network sees: of 224 pixels, the middle ones after the shorter side was made 256."""
    return transforms.center_crop(transforms.resize(image, [side * RESIZE // CROP]), [side, side])


def _random_crop(image: Image.Image, choice: random.Random) -> Image.Image:
    """Return a square of 40 to 100 % of the shorter side, mirrored half of the time."""
    side = round(min(image.size) * choice.uniform(0.4, 1.0))
    left, top = choice.randint(0, image.width - side), choice.randint(0, image.height - side)
    crop = image.crop((left, top, left + side, top + side))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if choice.random() < 0.5 else crop


def _open(archive: Archive, member: str) -> Image.Image:
    return Image.open(io.BytesIO(archive.read(member))).convert("RGB")
