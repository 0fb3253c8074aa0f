"""A region: the layers between which each channel may be scaled by a factor of its own, and why if none may."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FIXED = -1
"""In place of the index of a factor: the channel keeps its scale."""


@dataclass(frozen=True, slots=True)
class End:
    """The dimension of a layer's parameters along which a region scales."""

    path: str
    """The qualified name of the layer."""
    kind: Literal["rows", "columns", "norm", "partner"]
    """``rows``: the output channels of a weight, and the bias. ``columns``: the input channels of a weight. ``norm``:
    weight and bias of a batch, layer, group or instance norm. ``partner``: output channels, too, that are multiplied by
    the factors, since a product sums them with those that are divided."""
    factors: tuple[int, ...] = field(repr=False)
    """For each channel, the index of its factor in the region, or ``FIXED``."""
    behind: str = ""
    """The layer whose weight a batch norm is folded into."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A clamp inside of a region: scaling may not bring a channel to its bounds, which stay as they are."""

    name: str
    """The node of the clamp."""
    value: str
    """The node that it clamps."""
    axis: int
    """Dimension of the value that counts channels, from the end."""
    low: float | None
    """None: a bound that moves with no factor: 0, or none."""
    high: float | None
    factors: tuple[int, ...] = field(repr=False)
    """As those of an ``End``."""


@dataclass(frozen=True, slots=True)
class Split:
    """A norm that gets a second one beside it, for the layers among its readers: they may be scaled, what else reads it
    may not."""

    norm: str
    """The qualified name of the norm."""
    path: str
    """That of the second one."""
    readers: tuple[str, ...]
    """Names of the nodes that read the second one."""


@dataclass(frozen=True, slots=True)
class Region:
    """Values whose channels are divided by the same factors, the layers that make them, and those that read them."""

    sources: tuple[End, ...]
    sinks: tuple[End, ...]
    bounds: tuple[Bound, ...] = ()
    channels: int = 0
    """The number of factors."""
    total: int = 0
    """The number of channels, with those that keep their scale."""
    values: tuple[str, ...] = ()
    """Names of the nodes whose values are divided by the factors."""
    reason: str = ""
    """Why no channel can be scaled; empty if some can. With factors, why the others cannot."""
    products: tuple[str, ...] = ()
    """Names of the matrix products that sum over the channels: of queries, which the sources make, with keys, which the
    sinks make. Empty: the sinks read the channels."""

    @property
    def name(self) -> str:
        """Return the qualified name of the first layer."""
        return (self.sources or self.sinks)[0].path
