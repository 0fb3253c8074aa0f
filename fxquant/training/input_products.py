"""Sums products of the inputs of a layer over data: half the second derivative of the squared error of an output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError
from fxquant.graph.inputs import describe_value
from fxquant.graph.macs import TRANSPOSED
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.conv_transpose import plain_convolution, plain_padding, with_zeros_between
from fxquant.training.unit_samples import patches

VALUES_AT_ONCE = 1 << 22
"""Of the rows of inputs that are multiplied at a time: 32 MB of float64."""


class InputProducts:
    """``sum(x x^T)`` over everything that a layer reads, for each group of a convolution.

    Args:
        layer: Linear layer or convolution, plain or transposed. An output of a transposed one multiplies all taps of
            the plain convolution that sums the same products, some of them with 0.

    ``sums`` is float64 [groups, inputs, inputs], inputs in the order of ``WeightMatrix``. ``count`` is the number of
    outputs that read them, in each channel.
    """

    def __init__(self, layer: Any) -> None:
        self.transposed = isinstance(layer, TRANSPOSED)
        self._layer, self._plain = layer, plain_convolution(layer) if self.transposed else layer
        self.groups = groups_of(layer)
        inputs = inputs_of_output(layer)
        self.sums = torch.zeros(self.groups, inputs, inputs, dtype=torch.float64, device=layer.weight.device)
        self.count = 0

    def add(self, x: Tensor) -> None:
        """Add what the layer multiplies for one batch: [..., in_features], or an image with or without a batch.

        Raises:
            InputError: it has another number of features or channels.
        """
        linear = isinstance(self._layer, nn.Linear)
        axis, expected = (
            (-1, self.sums.shape[-1]) if linear else (1 - self._layer.weight.dim(), self._layer.in_channels)
        )
        if x.dim() < -axis or x.shape[axis] != expected:
            raise InputError(
                f"the layer multiplies another number of {'features' if linear else 'channels'}",
                got=describe_value(x),
                expected=f"{expected} in dimension {axis}",
            )
        if linear:
            for part in x.reshape(-1, x.shape[-1]).split(max(VALUES_AT_ONCE // x.shape[-1], 1)):
                self._add(part.unsqueeze(0))
            return
        if self.transposed:
            x = with_zeros_between(x, self._layer.stride, *plain_padding(self._layer), 0.0)
        geometry = ConvGeometry.of(self._plain)
        sizes = geometry.output_size(tuple(x.shape[-geometry.spatial :]))
        batch = len(x) if x.dim() == geometry.spatial + 2 else 1
        width = self.sums.shape[-1] * self.groups
        places = torch.arange(batch * int(torch.tensor(sizes).prod()))
        for chosen in places.split(max(VALUES_AT_ONCE // width, 1)):
            rows = patches(x, self._plain, sizes, chosen)
            by_group = rows.view(len(rows), -1, self.groups, x.shape[-geometry.spatial - 1] // self.groups)
            self._add(by_group.permute(2, 0, 1, 3).flatten(2))

    def _add(self, rows: Tensor) -> None:
        """Add rows of inputs: [groups, rows, inputs]."""
        exact = rows.double()
        self.sums.baddbmm_(exact.transpose(1, 2), exact)
        self.count += rows.shape[1]


def groups_of(layer: Any) -> int:
    """Return the number of groups of a convolution; 1 for a linear layer."""
    groups: int = getattr(layer, "groups", 1)
    return groups


def inputs_of_output(layer: Any) -> int:
    """Return how many inputs one output of a layer adds up: of a convolution, all taps of all channels of its group."""
    if isinstance(layer, TRANSPOSED):
        return int(layer.weight[:, 0].numel()) // layer.groups
    return int(layer.weight[0].numel())
