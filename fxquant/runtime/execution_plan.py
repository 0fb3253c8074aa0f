"""A converted graph for inputs of one shape: programs, Python code for what lies between, and guards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fxquant.errors import warn
from fxquant.graph.generated_source import with_getattr_for_keywords
from fxquant.graph.text_table import format_rows
from fxquant.runtime.program import Program
from fxquant.runtime.recording import has_pending_conj_or_neg

TensorLayout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bool, bool]


def needs_gradient(x: Tensor) -> bool:
    """Tell whether autograd follows what is computed of a tensor."""
    return x.requires_grad and torch.is_grad_enabled()


def layout_of(x: Tensor) -> TensorLayout:
    """Return all of a tensor that a plan depends on: everything but the values."""
    return x.dtype, tuple(x.shape), x.stride(), needs_gradient(x), has_pending_conj_or_neg(x)


def has_layout(x: Tensor, layout: TensorLayout) -> bool:
    """Tell whether a tensor has the layout of another one."""
    dtype, shape, strides, with_gradient, pending = layout
    return (
        x.dtype is dtype
        and x.shape == shape
        and x.stride() == strides
        and needs_gradient(x) is with_gradient
        and has_pending_conj_or_neg(x) is pending
    )


class ShapesChangedError(Exception):
    """The shape of a value depends on other values, so that no plan holds for all inputs of one shape."""


class Step(Protocol):
    """A part of the graph. Values lie in numbered slots."""

    input_slots: tuple[int, ...]
    output_slots: tuple[int, ...]

    def run(self, module: nn.Module, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values for ``output_slots``, from those of ``input_slots``."""


@dataclass(slots=True)
class PythonStep:
    """Runs nodes by generated Python code, as the graph does."""

    input_slots: tuple[int, ...]
    output_slots: tuple[int, ...]
    function: Generated
    expected: tuple[TensorLayout | None, ...]
    """The layout of each output; None where it is no tensor."""
    reasons: tuple[tuple[str, str], ...]
    """Name of each node, and the reason why it is in no program."""

    @property
    def nodes(self) -> int:
        """Return the number of nodes in this step."""
        return len(self.reasons)

    def run(self, module: nn.Module, values: Sequence[Any]) -> Sequence[Any]:
        results = self.function(module, *values)
        for result, layout in zip(results, self.expected, strict=True):
            if layout is not None and not has_layout(result, layout):
                raise ShapesChangedError
        return results


@dataclass(slots=True)
class ProgramStep:
    """Runs nodes by a program."""

    input_slots: tuple[int, ...]
    output_slots: tuple[int, ...]
    program: Program
    results: tuple[tuple[int, ...] | int, ...]
    """For each output slot: index of the program's result, or indices if the value is a tuple."""
    nodes: int
    loops: int
    chains: tuple[tuple[str, ...], ...] = ()
    """Names of nodes whose loops run together, strip by strip of rows."""

    def run(self, module: nn.Module, values: Sequence[Any]) -> Sequence[Any]:
        results = self.program(values)
        return [results[at] if isinstance(at, int) else tuple(results[i] for i in at) for at in self.results]


def names_of_chains(
    chains: Iterable[Sequence[int]], nodes: Sequence[Node], loops_after: Sequence[int]
) -> tuple[tuple[str, ...], ...]:
    """Return the paths or names of the nodes that launched the loops of chains.

    Args:
        chains: The numbers of their loops in the recording.
        nodes: What was recorded.
        loops_after: How many loops were recorded when each of the nodes had run.
    """
    launched = ((nodes[bisect_right(loops_after, loop)] for loop in chain) for chain in chains)
    return tuple(tuple(str(n.target) if n.op == "call_module" else n.name for n in chain) for chain in launched)


@dataclass(frozen=True, slots=True)
class ModuleGuard:
    """Guards that a module is still in its place."""

    siblings: Mapping[str, nn.Module | None]
    name: str
    module: nn.Module

    def is_met(self) -> bool:
        """Tell whether the module is still in its place."""
        return self.siblings.get(self.name) is self.module


@dataclass(frozen=True, slots=True)
class StateGuard:
    """Guards the packed state of a module that a program was recorded with."""

    module: nn.Module
    packed: Any

    def is_met(self) -> bool:
        """Tell whether a call of the module would still launch what was recorded, and nothing else."""
        state = self.module.__dict__
        return (
            state["_packed"] is self.packed
            and not state["_forward_hooks"]
            and not state["_forward_pre_hooks"]
            and "forward" not in state
        )


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """Guards a parameter or buffer that steps read, or of which constants were computed."""

    owner: nn.Module
    name: str
    tensor: Tensor
    version: int

    def is_met(self) -> bool:
        """Tell whether the attribute is the same tensor, which nobody has written to."""
        return getattr(self.owner, self.name, None) is self.tensor and self.tensor._version == self.version


@dataclass(frozen=True, slots=True)
class MemoryGuard:
    """Guards the address of a tensor of the state whose memory a program reads: ``share_memory_()`` moves it."""

    tensor: Tensor
    address: int

    def is_met(self) -> bool:
        """Tell whether the memory of the tensor has its address of before."""
        return self.tensor.data_ptr() == self.address


Guard = ModuleGuard | StateGuard | TensorGuard | MemoryGuard


@dataclass(slots=True)
class ExecutionPlan:
    """Runs a graph step by step."""

    steps: tuple[Step, ...]
    slots: int
    unused: tuple[tuple[int, ...], ...]
    """For each step, the slots whose values no later step reads."""
    result: int
    guards: tuple[Guard, ...]
    constants: tuple[tuple[int, Any], ...] = ()
    """Slots whose values are the same in each call, and their values."""
    fallback_reason: str = ""
    """Why the graph runs in its place; empty where it does not."""
    used: int = 0
    """Number of the call that ran it last; the engine counts calls."""

    def is_valid(self) -> bool:
        """Tell whether no module was changed, replaced or hooked since the plan was made."""
        for each in self.guards:  # noqa: SIM110, in each call, and a generator takes longer
            if not each.is_met():
                return False
        return True

    @property
    def only_program(self) -> Program | None:
        """Return the program that makes the result of the input, with nothing beside it; None where more is done."""
        step = self.steps[0] if len(self.steps) == 1 else None
        if not isinstance(step, ProgramStep) or not step.program.takes_and_gives_one:
            return None
        direct = (step.input_slots, step.output_slots, step.results) == ((0,), (self.result,), (0,))
        return step.program if direct else None

    def run(self, module: nn.Module, inputs: Sequence[Any]) -> Any:
        """Return the graph's result."""
        values: list[Any] = [*inputs, *[None] * (self.slots - len(inputs))]
        for slot, value in self.constants:
            values[slot] = value
        for step, unused in zip(self.steps, self.unused, strict=True):
            results = step.run(module, [values[slot] for slot in step.input_slots])
            for slot, value in zip(step.output_slots, results, strict=True):
                values[slot] = value
            for slot in unused:
                values[slot] = None
        return values[self.result]

    @property
    def programs(self) -> tuple[ProgramStep, ...]:
        """Return the steps that need no Python."""
        return tuple(step for step in self.steps if isinstance(step, ProgramStep))

    @property
    def in_python(self) -> tuple[tuple[str, str], ...]:
        """Return the nodes that are in no program, by name, and why."""
        return tuple(each for step in self.steps if isinstance(step, PythonStep) for each in step.reasons)

    @property
    def summary(self) -> str:
        """Say what of the graph is in programs, and which of its nodes run together."""
        if self.fallback_reason:
            return f"the graph runs: {self.fallback_reason}"
        inside, loops = sum(step.nodes for step in self.programs), sum(step.loops for step in self.programs)
        arena = max((step.program.arena_bytes for step in self.programs), default=0)
        count, outside = len(self.programs), self.in_python
        head = (
            f"{count} program{'' if count == 1 else 's'} of {inside} nodes ({loops} loops, {arena / 1e6:.1f} MB), "
            f"{len(outside)} nodes in Python"
        )
        chains = [names for step in self.programs for names in step.chains]
        return "\n".join([head, *(f"  strip by strip: {', '.join(names)}" for names in chains)])

    def __str__(self) -> str:
        outside = self.in_python
        if self.fallback_reason or not outside:
            return self.summary
        table = format_rows(outside, ("in Python", "why"), form="plain")
        return f"{self.summary}\n" + "\n".join(f"  {line}" for line in table.splitlines())


def without_programs(why: str) -> ExecutionPlan:
    """Return the plan for inputs on which the graph has to run."""
    return ExecutionPlan((), 0, (), 0, (), fallback_reason=why)


def with_values(argument: Any, value_of: Callable[[Node], Any]) -> Any:
    """Return an argument of a node with values in place of nodes, in the containers of generated code: none of fx."""
    if isinstance(argument, Node):
        return value_of(argument)
    if isinstance(argument, tuple):
        items = [with_values(item, value_of) for item in argument]
        return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
    if isinstance(argument, list):
        return [with_values(item, value_of) for item in argument]
    if isinstance(argument, dict):
        return {key: with_values(item, value_of) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(*(with_values(item, value_of) for item in (argument.start, argument.stop, argument.step)))
    return argument


Generated = Callable[..., Any]


def function_of(nodes: Iterable[Node], inputs: Sequence[Node], results: Any, fixed: Mapping[Node, Any]) -> Generated:
    """Return a function that runs nodes as the graph's own code does.

    Args:
        nodes: In the order of the graph.
        inputs: What they read of other nodes.
        results: Nodes, in any structure that ``torch.fx`` knows.
        fixed: Nodes that need not run, since their value is known. It comes back of its own class, as a new object.

    Returns:
        ``function(module, *inputs)``, with the module that owns the graph.
    """
    graph, nodes = Graph(), tuple(nodes)
    copies: dict[Node, Any] = dict(fixed)
    for index, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{index}")
    read = {used for node in nodes for used in node.all_input_nodes}
    map_arg(results, read.add)
    unspelled = [node for node in fixed if node in read and not _is_spelled(fixed[node])]
    for index, node in enumerate(unspelled):
        copies[node] = graph.placeholder(f"known_{index}")
    for node in unspelled:
        if type(fixed[node]) not in _SHARED:
            copies[node] = graph.call_function(copy_containers, (copies[node],))
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda used: copies[used])
    graph.output(map_arg(results, lambda used: copies[used]))
    with with_getattr_for_keywords(graph):
        code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<part of a converted graph>", "exec"), names)
    function: Any = names["forward"]
    function.__defaults__ = tuple(copy_containers(fixed[node]) for node in unspelled)  # they are its last parameters
    return function


_SPELLED = (NoneType, bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_SHARED = (torch.Size, bytes, range, type, torch.finfo, torch.iinfo)
"""Types of values without parts that a caller may change."""


def _is_spelled(value: Any) -> bool:
    """Tell whether the code that ``torch.fx`` writes for a value gives the same again, of the same class."""
    if type(value) in (tuple, list):
        return all(_is_spelled(item) for item in value)
    if type(value) is dict:
        return all(type(key) in _SPELLED and _is_spelled(item) for key, item in value.items())
    if type(value) is slice:
        return _is_spelled((value.start, value.stop, value.step))
    return type(value) in _SPELLED


def copy_containers(value: Any) -> Any:
    """Return a container made anew, as are all in it: the caller of a model may change what it gives."""
    return pytree.tree_map(lambda leaf: leaf, value, is_leaf=lambda part: type(part) is torch.Size)


_HINT = "results are right; please report the model. engine='graph' makes no programs"


def kind_and_words(error: Exception) -> str:
    """Return the class of an error, and the first line of what it says."""
    words = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def warn_of_dropped(why: str, nodes: Sequence[Node], error: Exception | None = None) -> None:
    """Warn that a part of the graph runs without its program.

    Args:
        why: What is wrong with the program.
        nodes: The part, in the order in which it runs.
        error: What was raised, if anything was.
    """
    names = [str(node.target) for node in nodes if node.op == "call_module"] or [node.name for node in nodes]
    warn(
        f"{why}, and was dropped: this part runs as a graph",
        at=names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}",
        got=None if error is None else kind_and_words(error),
        hint=_HINT,
    )


def warn_of_failed_plan(error: Exception) -> None:
    """Warn that the whole model runs as a graph on inputs of one shape."""
    warn("no programs could be made for inputs of this shape: the graph runs", got=kind_and_words(error), hint=_HINT)
