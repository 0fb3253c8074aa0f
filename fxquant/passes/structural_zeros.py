"""Finds elements of a graph's values that are zero whatever its inputs are: sums of padding, where no bias is added."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED, TRANSPOSED_FUNCTIONS
from fxquant.graph.query import called_module, canonical_type, has_hooks, module_of, value_of
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.fake_quantize import FLOAT_BIAS, FakeQuantizedWeight

Sizes = tuple[tuple[int, ...], tuple[int, ...]]
"""Spatial sizes of the input and of the output of a convolution."""

_ZERO_KEEPING = frozenset(
    (
        *(F.relu, F.relu6, F.hardtanh, F.silu, F.mish, F.gelu, F.elu, F.leaky_relu, F.hardswish, F.pad, F.interpolate),
        *(F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, torch.clamp),
        *(torch.relu, torch.tanh, torch.abs, torch.add, torch.sub, torch.mul, torch.cat, torch.stack, operator.getitem),
        *("flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "expand", "contiguous"),
        *(torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.flip),
    )
)
"""Functions and methods whose result is zero where all that it reads is; most of them move values, or map each."""


def structural_zeros(gm: GraphModule) -> dict[Node, Tensor]:
    """Return which elements of the values of ``gm`` are zero whatever the inputs are, for the shapes of the example.

    ``F.pad`` gives such zeros, and a convolution without a bias where it reads nothing but padding; what reads these
    alone gives more of them. Each operator is run on values of both signs, with zeros where its operands have these.

    Returns:
        Value -> bool, of its shape, on the CPU. Values without such elements are absent.
    """
    zeros: dict[Node, Tensor] = {}
    for node in gm.graph.nodes:
        info = value_of(node)
        function = None if info is None or 0 in info.shape else _zero_keeping(node, zeros)
        if info is None or function is None:
            continue
        found = _result_zeros(node, function, zeros)
        if found.shape == info.shape and bool(found.any()):
            zeros[node] = found
    return zeros


def _zero_keeping(node: Node, zeros: Mapping[Node, Tensor]) -> Callable[..., Tensor] | None:
    """Return what computes the value of a node; None if it is not known, or no element is zero for such a reason."""
    infos = [value_of(operand) for operand in node.all_input_nodes]
    if any(info is None or not info.has_shape or not info.dtype.is_floating_point for info in infos):
        return None
    module: Any = module_of(node)
    reads_zeros = any(operand in zeros for operand in node.all_input_nodes)
    if _is_plain_convolution(module):
        return _sum_of_taps(module, node) if reads_zeros or _pads_only(node, module) else None
    if not reads_zeros and node.target is not F.pad:
        return None
    if isinstance(module, StaticFakeQuantize):
        return torch.clone
    if node.target not in _ZERO_KEEPING:
        return None
    return getattr(Tensor, node.target) if isinstance(node.target, str) else node.target


def _is_plain_convolution(module: Any) -> bool:
    """Tell whether a module gives a convolution and nothing else; rounding of its weight changes no zeros."""
    kinds = (*CONVOLUTIONS, *TRANSPOSED)
    if not isinstance(module, kinds) or has_hooks(module):
        return False
    return isinstance(module, FakeQuantizedWeight) or canonical_type(module) in kinds


def _pads_only(node: Node, layer: Any) -> bool:
    sizes = spatial_sizes(node)
    return sizes is not None and some_read_nothing(layer, sizes)


def _sum_of_taps(layer: Any, node: Node) -> Callable[[Tensor], Tensor] | None:
    """Return a convolution of the geometry of ``layer`` with ones as its weight; None if it has a bias."""
    bias = layer._buffers.get(FLOAT_BIAS, layer.bias)
    if bias is not None and bool(bias.any()):
        return None
    ones = torch.ones(layer.weight.shape)
    if not isinstance(layer, TRANSPOSED):
        return lambda x: layer._conv_forward(x, ones, None)
    function = TRANSPOSED_FUNCTIONS[len(layer.kernel_size) - 1]
    sizes = spatial_sizes(node)
    assert sizes is not None  # all operands have shapes
    # The size may be asked for in the call, and then torch takes less than it gives of itself.
    geometry = zip(*sizes, layer.stride, layer.padding, layer.kernel_size, layer.dilation, strict=True)
    added = [
        size - ((count - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
        for count, size, stride, padding, kernel, dilation in geometry
    ]

    def run(x: Tensor, *_: Any, **__: Any) -> Tensor:
        options: Any = (layer.stride, layer.padding, added, layer.groups, layer.dilation)
        return function(x, ones, None, *options)

    return run


def _result_zeros(node: Node, function: Callable[..., Tensor], zeros: Mapping[Node, Tensor]) -> Tensor:
    """Return which elements of a result are zero both for positive and for negative operands."""
    generator = torch.Generator().manual_seed(0)  # random, so that no sum is zero by chance
    found = []
    for sign in (1, -1):

        def operand(value: Node, sign: int = sign) -> Tensor:
            info = value_of(value)
            assert info is not None
            anything = sign * (0.5 + torch.rand(info.shape, generator=generator))
            return anything.masked_fill(zeros[value], 0) if value in zeros else anything

        args, kwargs = map_arg((node.args, node.kwargs), operand)
        found.append(function(*args, **kwargs) == 0)
    return found[0] & found[1]


def spatial_sizes(node: Node) -> Sizes | None:
    """Return the sizes of input and output of the convolution that ``node`` calls; None where they are not known.

    Calls on other sizes have other shares of padding, but one bias.
    """
    x, y = (value_of(each) if isinstance(each, Node) else None for each in (node.args[0], node))
    if x is None or y is None or not x.has_shape:
        return None
    first = 2 - called_module(node).weight.dim()
    return (x.shape[first:], y.shape[first:]) if first else None


def some_read_nothing(layer: Any, sizes: Sizes) -> bool:
    """Tell whether some outputs are the bias alone: they read nothing but padding, or lie between all inputs.

    Args:
        layer: Convolution or transposed convolution of any geometry.
        sizes: Spatial, of input and output.
    """
    transposed = isinstance(layer, TRANSPOSED)
    geometry = None if transposed else ConvGeometry.of(layer)
    if geometry is not None and geometry.padding_mode != "zeros":
        return False
    before = layer.padding if geometry is None else geometry.before
    dimensions: Any = zip(layer.kernel_size, layer.dilation, layer.stride, before, *sizes, strict=True)
    for taps, dilation, stride, padding, inputs, outputs in dimensions:
        steps, limit = (inputs, outputs) if transposed else (outputs, inputs)
        places = torch.arange(steps).unsqueeze(1) * stride - padding + torch.arange(taps) * dilation
        inside = (places >= 0) & (places < limit)
        reached = len(places[inside].unique()) if transposed else int(inside.any(1).sum())
        if reached < outputs:
            return True
    return False
