"""The networks of ``zoo_others.py``: a table of families, each name with what builds the network and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

SIDE = 224
"""Pixels of an image, where a network does not fix them."""
SMALL = 128
"""The same, of networks that keep large maps."""
FRAMES = 16
"""Images of a video."""


@dataclass(frozen=True)
class Entry:
    """One network."""

    build: Callable[[], nn.Module]
    """Gives the network with random weights."""
    inputs: Callable[[Tensor], tuple[Tensor, ...]] = lambda images: (images,)
    """Makes the inputs of a batch from images, float32 [N, 3, H, W]."""
    side: Callable[[nn.Module], int] = lambda model: SIDE
    """Pixels of a side of the images."""


TIMM = (
    *("cait_xxs24_224", "coat_lite_tiny", "convnext_atto", "convnextv2_atto", "cs3darknet_s", "dla34", "dpn48b"),
    *("ecaresnet26t", "edgenext_xx_small", "efficientformerv2_s0", "ese_vovnet19b_slim", "fasternet_t0", "fastvit_t8"),
    *("gcresnet33ts", "ghostnetv2_100", "hgnetv2_b0", "hrnet_w18_small", "inception_next_atto", "lcnet_050"),
    *("levit_128s", "mambaout_femto", "mixer_s32_224", "mobilenetv3_small_100", "mobilenetv4_conv_small"),
    *("mobilevit_xxs", "mobilevitv2_050", "nf_regnet_b0", "nf_resnet26", "poolformer_s12", "pvt_v2_b0"),
    *("regnety_002", "repghostnet_050", "repvit_m0_9", "res2net50_14w_8s", "resnest14d", "resnetv2_18"),
    *("rexnet_100", "selecsls42", "skresnet18", "starnet_s1", "swin_s3_tiny_224", "tf_efficientnetv2_b0"),
    *("tiny_vit_5m_224", "vit_tiny_patch16_224", "xception41", "xcit_nano_12_p16_224"),
)
"""Names in timm, a small network of each kind of architecture."""

SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")
LARGE = ("mvit_v1_b", "s3d")
"""Networks for videos of 224 pixels."""
VIDEO = ("mc3_18", "mvit_v1_b", "r2plus1d_18", "r3d_18", "s3d", "swin3d_t")


class DetectorPart(nn.Module):
    """The backbone of a detector and one of its heads, without what chooses among boxes."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Any:
        return self.head(list(self.backbone(images).values()))


class BoxHead(nn.Module):
    """What a two-stage detector computes of each box: features, then classes and offsets, or a mask, or points."""

    def __init__(self, backbone: nn.Module, *layers: nn.Module) -> None:
        super().__init__()
        self.backbone, self.layers = backbone, nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Any:
        features = self.backbone(images)["0"]
        return self.layers(features[:, :, :14, :14] if len(self.layers) > 2 else features[:, :, :7, :7])


def detector(name: str) -> Any:
    return torchvision.models.get_model(name, weights=None, weights_backbone=None)


def proposal_head(name: str) -> nn.Module:
    model = detector(name)
    return DetectorPart(model.backbone, model.rpn.head)


def one_stage(name: str) -> nn.Module:
    model = detector(name)
    return DetectorPart(model.backbone, model.head)


def box_head() -> nn.Module:
    roi = detector("fasterrcnn_mobilenet_v3_large_fpn")
    return BoxHead(roi.backbone, roi.roi_heads.box_head, roi.roi_heads.box_predictor)


def mask_head() -> nn.Module:
    roi = detector("maskrcnn_resnet50_fpn")
    return BoxHead(roi.backbone, *roi.roi_heads.mask_head, *roi.roi_heads.mask_predictor)


def video(images: Tensor) -> tuple[Tensor]:
    """Each image as a video that moves by a pixel a frame: [N, 3, T, H, W]."""
    frames = [images.roll((frame, frame), (2, 3)) for frame in range(FRAMES)]
    return (torch.stack(frames, 2),)


def two_frames(images: Tensor) -> tuple[Tensor, Tensor]:
    return images, images.roll((2, 3), (2, 3))


def timm_network(name: str) -> nn.Module:
    import timm  # not needed for the others

    return timm.create_model(name, pretrained=False)


def small(model: nn.Module) -> int:
    return SMALL


def timm_side(model: Any) -> int:
    return model.default_cfg["input_size"][-1]


def torchvision_network(name: str, **arguments: Any) -> nn.Module:
    return torchvision.models.get_model(name, weights=None, **arguments)


def entries() -> Mapping[str, Entry]:
    """Every network by ``family:name``."""
    quiet: dict[str, Any] = {"weights_backbone": None, "aux_loss": False}
    table = {f"timm:{name}": Entry(partial(timm_network, name), side=timm_side) for name in TIMM}
    for name in SEGMENTATION:
        arguments = {"weights_backbone": None} if name.startswith("lraspp") else quiet
        table[f"segmentation:{name}"] = Entry(partial(torchvision_network, name, **arguments))
    for name in VIDEO:
        network = partial(torchvision_network, name)
        table[f"video:{name}"] = Entry(network, video, *(() if name in LARGE else (small,)))
    table["flow:raft_small"] = Entry(partial(torchvision_network, "raft_small"), two_frames, small)
    for name in ("fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_resnet50_fpn"):
        table[f"proposals:{name}"] = Entry(partial(proposal_head, name))
    for name in ("retinanet_resnet50_fpn", "fcos_resnet50_fpn", "ssdlite320_mobilenet_v3_large"):
        table[f"detection:{name}"] = Entry(partial(one_stage, name))
    table["detection:box head"] = Entry(box_head)
    table["detection:mask head"] = Entry(mask_head)
    return table
