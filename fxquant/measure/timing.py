"""Times each unit, in int8 and in float, and each boundary between the two."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import KernelError
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import TensorInfo, info_of
from fxquant.measure.runner import function_of
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import QParams
from fxquant.runtime.modes import NotRecordableError
from fxquant.runtime.recording import Recording

CALLS = ("call_module", "call_function", "call_method")
SHORTEST = 1e-4
"""Seconds that a timed run of a recorded unit takes, by repetition: a call of a program costs some µs by itself."""
MOST_REPEATS = 16
IMAGE_RANK = 4

Call = Callable[[], Any]


def seconds_of(call: Call, on_gpu: bool = False) -> float:
    """Time one call, after one that is not timed, so that weights and code are in the caches."""
    call()
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved_medians(calls: Mapping[str, Call], rounds: int, on_gpu: bool = False) -> dict[str, float]:
    """Median seconds of each: in every round each has its turn, so that load from elsewhere hits all alike."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(seconds_of(call, on_gpu))
    return {name: statistics.median(times) for name, times in seconds.items()}


class TimedRun(BoundInterpreter):
    """Runs a graph and times some of its nodes where they stand, on what they are given there."""

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], timed: Collection[str]) -> None:
        super().__init__(gm, bound)
        self.seconds: dict[str, float] = {}
        self.infos: dict[str, Any] = {}
        self._timed = timed
        self._on_gpu = any(isinstance(x, Tensor) and x.is_cuda for x in pytree.tree_leaves(tuple(bound.values())))

    def compute(self, n: Node) -> Any:
        if n.op not in CALLS or n.name not in self._timed:
            value = super().compute(n)
        else:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            call = partial(function_of(n, args), *args, **kwargs)
            value = call()
            self.seconds[n.name] = self.measure(n, call, args, kwargs)
        self.infos[n.name] = info_of(value)
        return value

    def measure(self, node: Node, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
        return seconds_of(call, self._on_gpu)


class TimedPrograms(TimedRun):
    """Times nodes as they run inside of a program, where they can: without Python and without checks."""

    def __init__(
        self, gm: GraphModule, bound: Mapping[str, Any], timed: Collection[str], programs: dict[str, Any]
    ) -> None:
        super().__init__(gm, bound, timed)
        self._programs = programs
        """By the names of nodes, kept from run to run."""

    def measure(self, node: Node, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
        leaves = (leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor))
        inputs = list({id(leaf): leaf for leaf in leaves}.values())
        if node.name not in self._programs:
            repeats = min(MOST_REPEATS, 1 + int(SHORTEST / max(seconds_of(call, self._on_gpu), 1e-9)))
            self._programs[node.name] = recorded(call, inputs, repeats), repeats
        program, repeats = self._programs[node.name]
        if program is None:
            return super().measure(node, call, args, kwargs)
        return seconds_of(lambda: program(inputs)) / repeats


def recorded(call: Call, inputs: list[Tensor], repeats: int = 1) -> Callable[[list[Tensor]], Any] | None:
    """A program that makes a call some times; None where none can. What only looks at its inputs takes no time at all.

    Args:
        call: On ``inputs``, and on what stays the same.
        inputs: On the CPU, each one tensor of its own memory; others make no program.
        repeats: How often the program makes the call.
    """
    if any(type(x) is not Tensor or not x.is_cpu for x in inputs):
        return None
    recording = Recording()
    try:
        for x in inputs:
            recording.add_input(x)
        result = recording.attempt(lambda: [call() for _ in range(repeats)][-1])
    except NotRecordableError:
        recording.drop()
        return None
    except BaseException:
        recording.drop()
        raise
    if not recording.loops:
        recording.drop()
        return lambda inputs: None
    with suppress(KernelError):
        return recording.finish([leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)])
    return None


class UnitTimer:
    """Times all units of a model, round by round: first the whole float graph, then the whole int8 graph.

    Args:
        model: The float graph.
        int8: The graph with all units lowered.
        units: Which of them to time.
        bound: The inputs by name.
        programs: Whether the int8 graph runs by programs.
    """

    def __init__(
        self,
        model: GraphModule,
        int8: GraphModule,
        units: tuple[QuantUnit, ...],
        bound: Mapping[str, Any],
        programs: bool,
    ) -> None:
        self._model, self._int8, self._units, self._bound = model, int8, units, bound
        self._programs: dict[str, Any] | None = {} if programs else None
        self._float: dict[str, list[float]] = defaultdict(list)
        self._lowered: dict[str, list[float]] = defaultdict(list)
        self.infos: Mapping[str, Any] = {}
        """What each value of the float graph is, after the first round."""

    def round(self) -> None:
        """Run both graphs once."""
        run = TimedRun(self._model, self._bound, {name for unit in self._units for name in unit.nodes})
        run.run()
        self.infos = run.infos
        roots = {unit.root for unit in self._units}
        programs = self._programs
        lowered = (
            TimedRun(self._int8, self._bound, roots)
            if programs is None
            else TimedPrograms(self._int8, self._bound, roots, programs)
        )
        lowered.run()
        for unit in self._units:
            self._float[unit.root].append(sum(run.seconds[name] for name in unit.nodes))
            self._lowered[unit.root].append(lowered.seconds.get(unit.root, 0.0))  # of some nothing is left in int8

    @property
    def in_int8(self) -> dict[str, float]:
        """Median seconds of each unit in int8."""
        return {name: statistics.median(times) for name, times in self._lowered.items()}

    @property
    def in_float(self) -> dict[str, float]:
        """Median seconds of each unit in float."""
        return {name: statistics.median(times) for name, times in self._float.items()}


class BoundaryTimer:
    """Times quantizing and dequantizing a value: with the call, since a boundary begins or ends a program.

    Args:
        programs: Whether the int8 graph runs by programs.
        rounds: Calls of which the median counts.
    """

    def __init__(self, programs: bool, rounds: int) -> None:
        self._programs, self._rounds = programs, rounds
        self._known: dict[Any, tuple[float, float]] = {}

    def seconds(self, value: Any, qparams: QParams) -> tuple[float, float]:
        """To quantize a value, and to dequantize it; values of one shape are measured once. Of what is no tensor, 0."""
        if not isinstance(value, TensorInfo):
            return 0.0, 0.0
        key = (value, qparams.scheme)
        if key not in self._known:
            image = len(value.shape) == IMAGE_RANK
            x = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
            quantize = Quantize(qparams, channels_last=image)
            dequantize = Dequantize(qparams, value.dtype, value.contiguous)
            self._known[key] = self._time(quantize, x), self._time(dequantize, quantize(x))
        return self._known[key]

    def _time(self, module: Callable[[Tensor], Tensor], x: Tensor) -> float:
        module(x)  # what it packs at its first call is no part of a recording
        program = recorded(lambda: module(x), [x]) if self._programs else None
        call: Call = (lambda: module(x)) if program is None else (lambda: program([x]))
        return interleaved_medians({"": call}, self._rounds, x.is_cuda)[""]
