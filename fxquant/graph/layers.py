"""Functions that take weights as arguments, and the modules that compute the same and hold the weights themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tensors = Mapping[str, Tensor | None]
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """The rule that makes modules of the calls of one function."""

    kinds: tuple[type[nn.Module], ...]
    """The modules that compute the same."""
    tensors: tuple[str, ...]
    """Parameters that the module holds; it is named after the first of them."""
    build: Callable[[Tensors, Arguments, int], nn.Module | None]
    """Makes the module of its tensors, the other arguments, and the rank of the input; None where none computes it.

    The rank is 0 where it is not known, without example inputs: only batch norms ask for it.
    """
    inputs: tuple[str, ...] = ()
    """Parameters that a call of the module is given too, in the order in which its ``forward`` takes them."""
    views: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = field(default_factory=dict)
    """Parameter of the module -> (the function's tensor, what makes the one of the other), where they are not one."""

    def sources(self, given: Mapping[str, Any]) -> dict[str, tuple[Any, Callable[[Tensor], Tensor] | None]]:
        """Parameter of the module -> (what stands for the function's tensor, what makes the parameter of it)."""
        viewed = {argument for argument, _ in self.views.values()}
        own: dict[str, Any] = {name: (source, None) for name, source in given.items() if name not in viewed}
        return own | {name: (given[argument], view) for name, (argument, view) in self.views.items()}


def _with_tensors(layer: nn.Module, tensors: Tensors) -> nn.Module:
    """Give a module that was made without memory its tensors: parameters as they are, others as parameters.

    These require a gradient where the tensors do, as views of parameters do and what is computed of them without
    gradients does not: torch sums products in another order where it might have to give one. What is expanded, as
    ``kernel.expand(8, 1, 3, 3)`` is, gets memory of its own for each element, since a state dict is copied into it; not
    so a matrix, with which torch would sum in another order, too.
    """
    for name, given in tensors.items():
        tensor = given.contiguous() if given is not None and given.dim() != 2 and _is_expanded(given) else given
        if name in layer._buffers:
            setattr(layer, name, tensor)
        elif tensor is None or isinstance(tensor, nn.Parameter):
            layer.register_parameter(name, tensor)
        else:
            layer.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad))
    return layer.eval()


def _is_expanded(tensor: Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


def _linear(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    weight = tensors["weight"]
    if weight is None or weight.dim() != 2:
        return None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=tensors.get("bias") is not None, device="meta")
    return _with_tensors(layer, tensors)


def _product(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    """``x @ w`` is a linear layer of the transposed weight: a view, so that the same product runs."""
    (other,) = tensors.values()
    return None if other is None or other.dim() != 2 else _linear({"weight": other.t()}, arguments, rank)


def _conv(kind: Any) -> Callable[[Tensors, Arguments, int], nn.Module | None]:
    def build(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
        weight = tensors["weight"]
        if weight is None:
            return None
        channels = weight.shape[1] * arguments["groups"], weight.shape[0]
        if "output_padding" in arguments:
            channels = channels[1], channels[0]
        bias = tensors["bias"] is not None
        return _with_tensors(kind(*channels, weight.shape[2:], bias=bias, device="meta", **arguments), tensors)

    return build


def _embedding(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    weight = tensors["weight"]
    if weight is None or weight.dim() != 2:
        return None
    rows, columns = weight.shape
    return _with_tensors(nn.Embedding(rows, columns, device="meta", **arguments), tensors)


def _embedding_bag(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    """Not of a table of integers: torch takes those for indices that were given in the place of the table."""
    weight = tensors["weight"]
    if weight is None or weight.dim() != 2 or not weight.is_floating_point():
        return None
    rows, columns = weight.shape
    return _with_tensors(nn.EmbeddingBag(rows, columns, device="meta", **arguments), tensors)


def _prelu(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    weight = tensors["weight"]
    if weight is None or weight.dim() > 1:
        return None
    layer = nn.PReLU(weight.numel(), device="meta")
    return _with_tensors(layer, tensors) if weight.dim() else _with_tensors(layer, {"weight": weight.reshape(1)})


_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _batch_norm(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    """With running statistics that do not change; a missing weight is 1, a missing bias 0."""
    mean, variance, kind = tensors["running_mean"], tensors["running_var"], _BATCH_NORMS.get(rank)
    if arguments["training"] is not False or mean is None or variance is None or kind is None:
        return None
    weight, bias = tensors["weight"], tensors["bias"]
    affine = weight is not None or bias is not None
    if affine:
        weight = torch.ones_like(variance) if weight is None else weight
        bias = torch.zeros_like(mean) if bias is None else bias
    layer = kind(len(mean), eps=arguments["eps"], momentum=arguments["momentum"], affine=affine, device="meta")
    layer.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=mean.device)
    return _with_tensors(layer, {"running_mean": mean, "running_var": variance, "weight": weight, "bias": bias})


def _layer_norm(tensors: Tensors, arguments: Arguments, rank: int) -> nn.Module | None:
    weight, bias = tensors["weight"], tensors["bias"]
    if weight is None:
        return None
    layer = nn.LayerNorm(weight.shape, arguments["eps"], bias=bias is not None, device="meta")
    return _with_tensors(layer, {"weight": weight, **({} if bias is None else {"bias": bias})})


_WEIGHT_AND_BIAS = ("weight", "bias")

LAYERS: dict[Any, Layer] = {
    F.linear: Layer((nn.Linear,), _WEIGHT_AND_BIAS, _linear),
    torch.matmul: Layer((), ("other",), _product, views={"weight": ("other", torch.t)}),
    torch.mm: Layer((), ("mat2",), _product, views={"weight": ("mat2", torch.t)}),
    F.conv1d: Layer((nn.Conv1d,), _WEIGHT_AND_BIAS, _conv(nn.Conv1d)),
    F.conv2d: Layer((nn.Conv2d,), _WEIGHT_AND_BIAS, _conv(nn.Conv2d)),
    F.conv3d: Layer((nn.Conv3d,), _WEIGHT_AND_BIAS, _conv(nn.Conv3d)),
    F.conv_transpose1d: Layer((nn.ConvTranspose1d,), _WEIGHT_AND_BIAS, _conv(nn.ConvTranspose1d)),
    F.conv_transpose2d: Layer((nn.ConvTranspose2d,), _WEIGHT_AND_BIAS, _conv(nn.ConvTranspose2d)),
    F.conv_transpose3d: Layer((nn.ConvTranspose3d,), _WEIGHT_AND_BIAS, _conv(nn.ConvTranspose3d)),
    F.embedding: Layer((nn.Embedding,), ("weight",), _embedding),
    F.embedding_bag: Layer((nn.EmbeddingBag,), ("weight",), _embedding_bag, ("offsets", "per_sample_weights")),
    F.prelu: Layer((nn.PReLU,), ("weight",), _prelu, views={"weight": ("weight", torch.flatten)}),
    F.layer_norm: Layer((nn.LayerNorm,), _WEIGHT_AND_BIAS, _layer_norm),
    F.batch_norm: Layer(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        ("running_mean", "running_var", "weight", "bias"),
        _batch_norm,
    ),
}
"""Canonical function -> the layer that a call of it with constant tensors is."""
