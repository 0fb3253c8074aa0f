"""Networks with dense outputs and small ones: demosaicnet, and the two face detectors of MTCNN that see one patch."""

from __future__ import annotations

import io

import numpy as np
import torch
from real_task import Task, importing, pixels, weights
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import functional as transforms

from fxquant.samples.archives import Archive
from fxquant.samples.photographs import SCIKIT_IMAGE, cropped, labelled_photographs

DEMOSAICNET = Archive("demosaicnet==0.0.14", "e50d502a1336736fc83fdaca97c6e709c3114419083cb1854def3355fb6894c9")
FACENET = Archive("facenet-pytorch==2.6.0", "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca")

DEMOSAIC_CALIBRATION, DEMOSAIC_SIDE = 96, 96
FACE_CALIBRATION = 192
FACES = 100
"""The first so many of the 200 patches show a face, the others do not."""


def demosaicnet_task() -> Task:
    """Colours from a Bayer mosaic of twenty photographs, 224 x 224."""
    with importing(DEMOSAICNET, "demosaicnet", stubs=("pkg_resources",)) as load:
        modules, mosaic = load("demosaicnet.modules"), load("demosaicnet.mosaic")
    modules._crop_like = _crop_like  # the package's own counts in numpy, which no graph can hold
    model = modules.BayerDemosaick(pretrained=False)
    model.load_state_dict(weights(DEMOSAICNET, "demosaicnet/data/bayer.pth"))
    shown = [transforms.pil_to_tensor(cropped(each.image)) for each in labelled_photographs()]
    photographs = torch.stack(shown).float() / 255
    batches = mosaic.bayer(photographs).split(4)
    calibration = [mosaic.bayer(batch) for batch in pixels(DEMOSAIC_CALIBRATION, DEMOSAIC_SIDE)]

    def psnr(restored: Tensor) -> float:
        """Of all pixels that the network gives, with colours clipped to what can be shown."""
        wanted = _crop_like(photographs, restored)
        return float(-10 * torch.log10(F.mse_loss(restored.clamp(0, 1), wanted)))

    return Task("demosaicnet", "PSNR, dB", "loss ≤ 0.7 dB", model.eval(), calibration, batches, psnr)


def rnet_task() -> Task:
    return _face_task("RNet", "rnet", 24)


def onet_task() -> Task:
    return _face_task("ONet", "onet", 48)


def _face_task(class_name: str, file: str, side: int) -> Task:
    with importing(FACENET, "facenet_pytorch", "facenet_pytorch.models", "facenet_pytorch.models.utils") as load:
        model = getattr(load("facenet_pytorch.models.mtcnn"), class_name)(pretrained=False)
    model.load_state_dict(weights(FACENET, f"facenet_pytorch/data/{file}.pt"))
    patches = torch.from_numpy(np.load(io.BytesIO(SCIKIT_IMAGE.read("skimage/data/lfw_subset.npy")))).float()
    grey = patches[:, None].expand(-1, 3, -1, -1)
    images = F.interpolate(grey, [side, side], mode="bilinear", antialias=True) * 2 - 1
    calibration = [batch * 2 - 1 for batch in pixels(FACE_CALIBRATION, side)]
    is_face = torch.arange(len(images)) < FACES

    def decide(y: Tensor) -> Tensor:
        return y[:, -1] > y[:, -2]  # the probabilities come last

    def right(y: Tensor) -> float:
        return float((decide(y) == is_face).sum())

    metric = f"right of {len(images)}"
    target = f"the same {len(images)}"
    return Task(f"MTCNN {class_name}", metric, target, model.eval(), calibration, images.split(50), right, decide)


def _crop_like(large: Tensor, small: Tensor) -> Tensor:
    """The middle of ``large`` that is as high and wide as ``small``."""
    top, left = (large.shape[-2] - small.shape[-2]) // 2, (large.shape[-1] - small.shape[-1]) // 2
    return large[..., top : top + small.shape[-2], left : left + small.shape[-1]]
