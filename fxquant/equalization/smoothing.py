"""Chooses the factors by which values of very different channels share one scale, at the cost of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.fx import GraphModule, Node

from fxquant.equalization.clamps import Extremes
from fxquant.equalization.factors import DEAD, Limits
from fxquant.equalization.layers import channel_axis
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.nn.folding import along_inputs
from fxquant.observers.qparams import choose_qparams
from fxquant.passes.scale_channels import factors_of, outputs_axis
from fxquant.plan.region import Region
from fxquant.plan.spec import QParams, QScheme

STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Exponents of the range of the values; that of the weights has the rest to 1."""


@dataclass(frozen=True, slots=True)
class SinkSchemes:
    """How a layer that reads a region rounds."""

    x: QScheme
    weight: Any
    """Makes a fresh observer of the weight."""


@dataclass(slots=True)
class _Candidate:
    """One call of a sink, with one choice of factors: what it reads and its weight, scaled and rounded."""

    node: Node
    layer: Any
    along: Tensor
    """The factors, in the shape of what it reads."""
    x: QParams
    weight: Tensor
    noise: float = 0.0
    signal: float = 0.0

    def add(self, x: Tensor, exact: Tensor) -> None:
        rounded = fake_quantize(x / self.along, self.x.scale, self.x.zero_point, self.x.scheme)
        y = functional_call(self.layer, {"weight": self.weight}, (rounded,))
        self.noise += float((y - exact).double().square().sum())
        self.signal += float(exact.double().square().sum())


@dataclass(slots=True)
class Smoothing:
    """Looks for the factors of some regions: ``s = a^α / w^(1 - α)``, with the ``α`` of least error on data.

    Args:
        gm: A graph that may be changed by running it.
        regions: Number -> region.
        schemes: Qualified name of a layer -> how it rounds; a layer that is missing does not round.
        ranges: Number -> the largest magnitude of each channel in the weights that read it, float64 [channels].
        limits: Number -> the limits of the factors.
        extremes: Of what the sinks read, and of what clamps do.

    Source:
        Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
        arXiv:2211.10438, eq. 4. The search for each region is ours.
    """

    gm: GraphModule
    regions: Mapping[int, Region]
    schemes: Mapping[str, SinkSchemes]
    ranges: Mapping[int, Tensor]
    limits: Mapping[int, Limits]
    extremes: Extremes
    _choices: dict[int, list[Tensor]] = field(init=False, default_factory=dict)
    _tried: dict[int, list[list[_Candidate]]] = field(init=False, default_factory=dict)

    def run(self, inputs: Iterable[Mapping[str, Any]]) -> dict[int, Tensor]:
        """Return the factors of each region."""
        for number, region in self.regions.items():
            calls = sink_calls(self.gm, region)
            self._choices[number] = self._factors(number, region, calls)
            self._tried[number] = [self._candidates(region, calls, each) for each in self._choices[number]]
        for bound in inputs:
            with torch.no_grad():
                _Trying(self.gm, bound, [c for tried in self._tried.values() for each in tried for c in each]).run()
        return {number: self._best(number) for number in self.regions}

    def _best(self, number: int) -> Tensor:
        errors = [sum(call.noise / call.signal for call in tried if call.signal > 0) for tried in self._tried[number]]
        return self._choices[number][min(range(len(errors)), key=errors.__getitem__)]

    def _factors(self, number: int, region: Region, calls: Sequence[tuple[Node, tuple[int, ...]]]) -> list[Tensor]:
        """Return the choices: first, none of them."""
        largest = torch.zeros(region.channels + 1, dtype=torch.float64)
        for node, factors in calls:
            name = node.all_input_nodes[0].name
            if name in self.extremes.low:
                at = torch.tensor([index if index >= 0 else region.channels for index in factors])
                seen = torch.maximum(-self.extremes.low[name], self.extremes.high[name]).clamp(min=0)
                largest.scatter_reduce_(0, at, seen, "amax")
        values, weights, limits = largest[:-1], self.ranges[number], self.limits[number]
        alive = (values > DEAD) & (weights > DEAD) & values.isfinite()
        if not bool(alive.any()):
            return [torch.ones_like(values)]
        found = [torch.ones_like(values).maximum(limits.low).minimum(limits.high)]
        for strength in STRENGTHS:
            wanted = values.where(alive, 1.0) ** strength / weights.where(alive, 1.0) ** (1 - strength)
            wanted = wanted / wanted[alive].log().mean().exp()  # channels that keep their scale lie among the others
            found.append(torch.where(alive, wanted.maximum(limits.low).minimum(limits.high), 1.0))
        return found

    def _candidates(
        self, region: Region, calls: Sequence[tuple[Node, tuple[int, ...]]], factors: Tensor
    ) -> list[_Candidate]:
        found: list[_Candidate] = []
        ends = {end.path: end for end in region.sinks}
        for node, _ in calls:
            path, name = str(node.target), node.all_input_nodes[0].name
            if path not in self.schemes or name not in self.extremes.low:
                continue
            layer: Any = self.gm.get_submodule(path)
            own, schemes = factors_of(ends[path], factors), self.schemes[path]
            low, high = self.extremes.low[name] / own, self.extremes.high[name] / own
            x = choose_qparams(low.min().float().reshape(1), high.max().float().reshape(1), schemes.x)
            scaled = (layer.weight.detach().double() * along_inputs(own, layer, outputs_axis(layer))).float()
            observer = schemes.weight()
            observer(scaled)
            qparams = observer.qparams()
            weight = fake_quantize(scaled, qparams.scale, qparams.zero_point, qparams.scheme)
            along = own.float().reshape(-1, *[1] * (-1 - channel_axis(layer)))
            found.append(_Candidate(node, layer, along, x, weight.to(layer.weight.dtype)))
        return found


def sink_calls(gm: GraphModule, region: Region) -> list[tuple[Node, tuple[int, ...]]]:
    """Return the calls of the layers that read a region, each with the indices of its factors."""
    ends = {end.path: end.factors for end in region.sinks}
    return [
        (node, ends[str(node.target)])
        for node in gm.graph.nodes
        if node.op == "call_module" and str(node.target) in ends
    ]


class _Trying(BoundInterpreter):
    """Runs the float graph, and tries candidates where their layers are called."""

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], candidates: Sequence[_Candidate]) -> None:
        super().__init__(gm, bound)
        self._candidates: dict[Node, list[_Candidate]] = {}
        for each in candidates:
            self._candidates.setdefault(each.node, []).append(each)

    def compute(self, n: Node) -> Any:
        value = super().compute(n)
        for each in self._candidates.get(n, ()):
            args, _ = self.fetch_args_kwargs_from_env(n)
            each.add(args[0], value)
        return value
