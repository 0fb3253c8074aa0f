"""Draws what a unit learns from: inputs of the quantized model, and what the float model gives there."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.fx import Node

from fxquant.graph.query import called_module
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.measure.runner import run_nodes
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.patterns.elementwise import CLAMPS
from fxquant.plan.quant_plan import QuantUnit
from fxquant.training.resumable_run import Memory, ResumableRun
from fxquant.training.weighted_units import layer_node

LARGEST_SAMPLE = 1 << 26
"""Values of the rows that one unit learns from, 256 MB of them: a random part where there are more."""
ROWS_AT_ONCE = 1 << 12
"""When the error of all rows is taken."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_ROW_BY_ROW = {*CLAMPS, torch.add}
"""What may follow a layer whose outputs are computed one by one, at places that lie apart."""


@dataclass(frozen=True, slots=True)
class UnitNodes:
    """The nodes of a unit in the simulation."""

    members: tuple[Node, ...]
    """In the order in which they run; the last one's value is the unit's."""
    layer: Node
    """The one that calls the layer with the weight."""

    @classmethod
    def of(cls, unit: QuantUnit, nodes: Mapping[str, Node]) -> UnitNodes:
        """Find them by their names."""
        return cls(tuple(nodes[name] for name in unit.nodes), layer_node(unit, nodes))

    @property
    def module(self) -> FakeQuantizedWeight:
        """Return the layer with the weight."""
        module = called_module(self.layer)
        assert isinstance(module, FakeQuantizedWeight)  # the simulation has no others
        return module

    @property
    def input(self) -> Node:
        """Return the node that the layer reads."""
        return self.layer.all_input_nodes[0]

    @property
    def read(self) -> tuple[Node, ...]:
        """Return the nodes outside of the unit that it reads."""
        return tuple(dict.fromkeys(n for m in self.members for n in m.all_input_nodes if n not in self.members))

    def run(self, values: Mapping[Node, Any], layer: Callable[..., Tensor]) -> Tensor:
        """Return the value of the unit, with ``layer`` called in place of its layer."""
        result: Tensor = run_nodes(self.members, values, {self.layer: layer})
        return result

    @property
    def is_row_by_row(self) -> bool:
        """Tell whether each output can be computed by itself, from a row of inputs."""
        others = {node.target for node in self.members if node is not self.layer}
        layer = issubclass(self.module.torch_class, (nn.Linear, *_CONVOLUTIONS))
        return layer and others <= _ROW_BY_ROW


class Samples(ABC):
    """Pairs of what a unit reads and what it should give.

    Args:
        targets: What the float model gives, of each batch.
    """

    def __init__(self, targets: Sequence[Tensor]) -> None:
        largest = max((float(target.abs().amax().nan_to_num()) for target in targets if target.numel()), default=1.0)
        self.unit = 2.0 ** (math.frexp(largest)[1] - 1)
        """The power of two below the largest target: squares of errors that are counted in it fit float32."""

    @abstractmethod
    def draw(self, rows: int, generator: Generator) -> Any:
        """About so many outputs, chosen at random, for ``loss``."""

    @abstractmethod
    def loss(self, weight: Tensor, drawn: Any) -> Tensor:
        """Return the squared error of the unit with that weight, in squares of ``unit``.

        It is summed over channels, and averaged over all else.
        """

    def pieces(self, drawn: Any, count: int) -> list[tuple[Any, float]]:
        """Return what was drawn in so many pieces, each with its share; in one where it cannot be cut."""
        del count
        return [(drawn, 1.0)]

    @abstractmethod
    def all(self) -> Iterator[tuple[Any, int]]:
        """Yield everything, a part at a time, each with the number of its outputs."""

    def mean_loss(self, weight: Tensor) -> float:
        """``loss`` of everything."""
        with torch.no_grad():
            parts = [(float(self.loss(weight, drawn)) * rows, rows) for drawn, rows in self.all()]
        return math.fsum(loss for loss, _ in parts) / max(sum(rows for _, rows in parts), 1)


@dataclass(frozen=True, slots=True)
class Rows:
    """Outputs that lie anywhere: what the layer multiplies for each, what is added to it, and what it should be."""

    inputs: Tensor
    added: Mapping[Node, Tensor]
    target: Tensor

    def at(self, places: Tensor | slice) -> Rows:
        """Some of them."""
        pick: Callable[[Tensor], Tensor] = (
            (lambda tensor: tensor[places])
            if isinstance(places, slice)
            else (lambda tensor: tensor.index_select(0, places))
        )
        added = {node: pick(value) for node, value in self.added.items()}
        return Rows(pick(self.inputs), added, pick(self.target))

    def to(self, device: torch.device) -> Rows:
        added = {node: value.to(device) for node, value in self.added.items()}
        return Rows(self.inputs.to(device), added, self.target.to(device))


class RowSamples(Samples):
    """Single outputs of a linear layer or convolution, wherever they lie: a product of a row and the weight.

    Args:
        nodes: The unit, for which ``is_row_by_row`` holds.
        lane: The quantized model, with what the unit reads.
        targets: What the float model gives, of each batch.
        memory: Holds the rows, for the owner ``"rows"``.
        generator: Chooses among the rows.
    """

    def __init__(
        self, nodes: UnitNodes, run: ResumableRun, targets: Sequence[Tensor], memory: Memory, generator: Generator
    ) -> None:
        super().__init__(targets)
        self._nodes = nodes
        self._layer: Any = nodes.module
        self._groups = getattr(self._layer, "groups", 1)
        weight = self._layer.weight
        self._channels, inputs = len(weight), weight[0].numel() * self._groups
        self._dtype = torch.promote_types(weight.dtype, torch.float32)
        # How many values a row has, and how many rows are kept.
        others = [node for node in nodes.members if node is not nodes.layer]
        added = [node for node in nodes.read if any(node in other.all_input_nodes for other in others)]
        width = inputs + self._channels * (1 + len(added))
        counts = [target.numel() // self._channels for target in targets]
        size = min(sum(counts), max(LARGEST_SAMPLE // width, ROWS_AT_ONCE))

        def empty(width: int) -> Tensor:
            return memory.empty("rows", (size, width), self._dtype)

        self._rows = Rows(empty(inputs), {node: empty(self._channels) for node in added}, empty(self._channels))
        # Take as many rows of each batch as it has of all.
        filled, seen = 0, 0
        for batch, (target, count) in enumerate(zip(targets, counts, strict=True)):
            seen += count
            stop = size * seen // max(sum(counts), 1)
            chosen = torch.arange(count) if stop - filled == count else _some(count, stop - filled, generator)
            self._fill(slice(filled, stop), chosen, run.values(batch), target)
            filled = stop

    def draw(self, rows: int, generator: Generator) -> Rows:
        places = torch.randint(len(self._rows.target), (rows,), generator=generator)
        return self._rows.at(places).to(self._layer.weight.device)

    def loss(self, weight: Tensor, drawn: Rows) -> Tensor:
        values = {self._nodes.input: drawn.inputs, **drawn.added}
        y = self._nodes.run(values, lambda *_, **__: self._product(drawn.inputs, weight))
        return ((y - drawn.target) / self.unit).square().sum(1).mean()

    def pieces(self, drawn: Rows, count: int) -> list[tuple[Rows, float]]:
        if count == 1:
            return [(drawn, 1.0)]
        parts = torch.arange(len(drawn.target)).chunk(count)
        slices = [slice(int(part[0]), int(part[-1]) + 1) for part in parts]
        return [(drawn.at(each), len(part) / len(drawn.target)) for each, part in zip(slices, parts, strict=True)]

    def all(self) -> Iterator[tuple[Rows, int]]:
        for part in torch.arange(len(self._rows.target)).split(ROWS_AT_ONCE):
            rows = self._rows.at(slice(int(part[0]), int(part[-1]) + 1))
            yield rows.to(self._layer.weight.device), len(part)

    def _product(self, inputs: Tensor, weight: Tensor) -> Tensor:
        bias = None if self._layer.bias is None else self._layer.bias.to(self._dtype)
        if self._groups == 1:
            return F.linear(inputs, weight.movedim(1, -1).flatten(1), bias)
        sizes = weight.shape[2:]
        images = inputs.unflatten(1, (*sizes, -1)).movedim(-1, 1)  # as large as the kernel, in channels_last
        return _CONVOLVE[len(sizes)](images, weight, bias, groups=self._groups).flatten(1)

    def _fill(self, places: slice, chosen: Tensor, values: Mapping[Node, Any], target: Tensor) -> None:
        x, convolution = values[self._nodes.input], isinstance(self._layer, _CONVOLUTIONS)
        rows = self._rows
        for node, stored in rows.added.items():
            stored[places] = _outputs(values[node].broadcast_to(target.shape), self._layer, chosen)
        rows.target[places] = _outputs(target, self._layer, chosen)
        if convolution:
            rows.inputs[places] = patches(x, self._layer, target.shape, chosen)
        else:
            rows.inputs[places] = x.reshape(-1, x.shape[-1])[chosen.to(x.device)].to(rows.inputs)


class WholeSamples(Samples):
    """Whole values of some items of a batch, for layers of which no output can be computed by itself.

    Args:
        As for ``RowSamples``.
    """

    def __init__(self, nodes: UnitNodes, run: ResumableRun, targets: Sequence[Tensor]) -> None:
        super().__init__(targets)
        self._nodes, self._run, self._targets = nodes, run, targets
        self._weight = _Given()
        self._layer: Any = copy.copy(nodes.module)
        self._layer._modules = {**nodes.module._modules, "weight_fake_quant": self._weight}
        layer: Any = self._layer
        self._channels: int = layer.out_channels if hasattr(layer, "out_channels") else layer.out_features

    def draw(self, rows: int, generator: Generator) -> tuple[dict[Node, Any], Tensor]:
        batch = int(torch.randint(len(self._targets), (1,), generator=generator))
        values, target = self._batch(batch)
        tensors = [value for value in (*values.values(), target) if isinstance(value, Tensor)]
        items = len(target) if target.dim() else 0
        x = values[self._nodes.input]
        batched = x.dim() == self._layer.weight.dim() if self._layer.weight.dim() > 2 else x.dim() > 1
        if not batched or any(not tensor.dim() or len(tensor) != items for tensor in tensors):
            return values, target
        count = max(1, rows * items * self._channels // max(target.numel(), 1))
        chosen = _some(items, min(count, items), generator).to(target.device)
        picked = {
            node: value.index_select(0, chosen) if isinstance(value, Tensor) else value
            for node, value in values.items()
        }
        return picked, target.index_select(0, chosen)

    def loss(self, weight: Tensor, drawn: tuple[dict[Node, Any], Tensor]) -> Tensor:
        values, target = drawn
        self._weight.weight = weight.to(self._layer.weight.dtype)
        y = self._nodes.run(values, self._layer)
        error = (y - target).to(torch.promote_types(target.dtype, torch.float32))  # float16 holds no such sum
        return (error / self.unit).square().sum() * (self._channels / max(target.numel(), 1))

    def all(self) -> Iterator[tuple[tuple[dict[Node, Any], Tensor], int]]:
        for batch, target in enumerate(self._targets):
            yield self._batch(batch), target.numel() // self._channels

    def _batch(self, batch: int) -> tuple[dict[Node, Any], Tensor]:
        values = self._run.values(batch)
        return {node: values[node] for node in self._nodes.read}, self._targets[batch]


class _Given(nn.Module):
    """Stands for a fake-quantize: answers with the weight that it was given."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.weight


def patches(x: Tensor, conv: Any, shape: Sequence[int], chosen: Tensor) -> Tensor:
    """Return the input patches that a convolution multiplies with its weight, for some of its outputs.

    Args:
        x: [N, C_in, *spatial] or [C_in, *spatial].
        conv: The convolution.
        shape: Of its output.
        chosen: int64 [rows], places of outputs, counted over N and the spatial dimensions.

    Returns:
        [rows, taps * C_in]; the last dimension of the kernel runs fastest among the taps.
    """
    geometry = ConvGeometry.of(conv)
    spatial = geometry.spatial
    x = x if x.dim() == spatial + 2 else x.unsqueeze(0)
    padding = [size for pair in zip(reversed(geometry.before), reversed(geometry.after), strict=True) for size in pair]
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    padded = F.pad(x, padding, mode) if any(padding) else x
    sizes, outputs = padded.shape[2:], tuple(shape[-spatial:])
    rest, taps = chosen.to(x.device), torch.zeros(1, dtype=torch.int64, device=x.device)
    first, pitch = torch.zeros_like(rest), 1
    for axis in reversed(range(spatial)):
        first += rest % outputs[axis] * geometry.stride[axis] * pitch
        rest = rest // outputs[axis]
        reach = torch.arange(geometry.kernel_size[axis], device=x.device) * geometry.dilation[axis] * pitch
        taps = (reach[:, None] + taps).flatten()
        pitch *= sizes[axis]
    places = (first + rest * pitch)[:, None] + taps
    pixels = padded.movedim(1, -1).reshape(-1, x.shape[1])
    return pixels.index_select(0, places.flatten()).view(len(places), -1)


def _outputs(values: Tensor, layer: nn.Module, chosen: Tensor) -> Tensor:
    """Some outputs of a layer, [rows, C]."""
    channels_last = values
    if isinstance(layer, _CONVOLUTIONS):
        channels_last = values.movedim(values.dim() - 1 - len(layer.kernel_size), -1)
    return channels_last.reshape(-1, channels_last.shape[-1])[chosen.to(values.device)]


def _some(count: int, size: int, generator: Generator) -> Tensor:
    return torch.randperm(count, generator=generator)[:size].sort().values
