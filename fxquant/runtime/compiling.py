"""Makes an execution plan of a graph: runs it node by node, and records what can be recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import KernelError
from fxquant.graph.query import module_of
from fxquant.nn.base import QuantizedModule
from fxquant.runtime.constant_cache import ConstantCache, holds_numbers, holds_tensors
from fxquant.runtime.execution_plan import (
    ExecutionPlan,
    Guard,
    MemoryGuard,
    ModuleGuard,
    ProgramStep,
    PythonStep,
    StateGuard,
    Step,
    TensorLayout,
    function_of,
    kind_and_words,
    layout_of,
    names_of_chains,
    needs_gradient,
    warn_of_dropped,
    warn_of_failed_plan,
    with_values,
    without_programs,
)
from fxquant.runtime.modes import ForbidCompute, NotRecordableError
from fxquant.runtime.program import Program
from fxquant.runtime.recording import Recording, clone_reversed, has_pending_conj_or_neg


def compile_graph(
    gm: GraphModule, inputs: Sequence[Any], *, fold_constants: bool = True
) -> tuple[ExecutionPlan | None, Any]:
    """Make an execution plan for inputs of these shapes, and the result for these.

    * A node that only launches native loops, takes views or asks for sizes becomes part of a program.
    * A node that depends on nothing but shapes and parameters is folded: its value is a constant of the plan.
    * What is left between programs stays Python.

    Nodes of a program run twice: once to be recorded, on reordered copies of the program's inputs; once, when the
    program ends, on the inputs themselves, for the result. The program has to give the bits of the latter, whatever lay
    in its memory before; else it is dropped with a warning. So is one that fails while it is made or checked, whatever
    fails, but for missing memory.

    Args:
        gm: On the CPU; every unit was run before.
        inputs: A value for each placeholder.
        fold_constants: Whether nodes may be folded into constants.

    Returns:
        The plan; None if the graph writes to a folded constant, or returns one: then it needs a plan without constants.
    """
    constants = ConstantCache(enabled=fold_constants)
    compiler = _Compiler(gm, constants)
    result = compiler.run(inputs)
    try:
        return compiler.plan() if constants.stay_constant(result) else None, result
    except (MemoryError, KernelError):
        raise
    except Exception as error:  # whatever it is: the user has a result already
        warn_of_failed_plan(error)
        return without_programs(kind_and_words(error)), result


@dataclass(slots=True)
class _Segment:
    """Nodes that run after each other in one way."""

    recording: Recording | None
    """None: in Python."""
    nodes: list[Node] = field(default_factory=list)
    loops_after: list[int] = field(default_factory=list)
    """How many loops were recorded when each of the nodes had run."""
    inputs: list[Node] = field(default_factory=list)
    """What they read of other segments."""
    values: dict[Node, Any] = field(default_factory=dict)
    """Copies of these, and what the nodes made of the copies while they were recorded."""


class _Compiler:
    def __init__(self, gm: GraphModule, constants: ConstantCache) -> None:
        self._gm = gm
        self._constants = constants
        self._values: dict[Node, Any] = {}
        self._slot: dict[Node, int] = {}
        self._fixed: dict[Node, Any] = {}
        """Nodes whose value follows from shapes -> that value."""
        self._varying: set[Node] = set()
        """Nodes whose value is no tensor and may be another one in the next call."""
        self._steps: list[ProgramStep | _Segment] = []
        self._module_guards: dict[str, ModuleGuard] = {}
        """Path of a module that went into the plan, or of one around it."""
        self._state_guards: dict[nn.Module, StateGuard] = {}
        self._open: _Segment | None = None
        self._reasons: dict[Node, str] = {}
        """Why nodes run in Python."""

    def run(self, inputs: Sequence[Any]) -> Any:
        """Run the graph once, and record on the way what can be recorded; return its result."""
        nodes = list(self._gm.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node, value in zip(placeholders, inputs, strict=True):
            self._values[node] = value
            self._slot_of(node)
        for node in nodes:  # first, so that they interrupt nothing
            if node.op == "get_attr" and not self._fold(node):
                self._by_python(node, "its value may be another one in the next call")
        for node in nodes:
            if node.op in ("call_module", "call_function", "call_method"):
                self._place_node(node)
        output = nodes[-1]
        self._by_python(output, "")
        self._close()
        return self._values[output]

    def plan(self) -> ExecutionPlan:
        """Return the plan of what was recorded."""
        made, result = self._without_passing_on()
        steps = tuple(self._python(step) if isinstance(step, _Segment) else step for step in made)
        last_use = {slot: index for index, step in enumerate(steps) for slot in (*step.input_slots, *step.output_slots)}
        unused = tuple(
            tuple(slot for slot, last in last_use.items() if last == index and slot != result)
            for index in range(len(steps))
        )
        folded = self._constants.values
        constants = tuple((slot, folded[node]) for node, slot in self._slot.items() if node in folded)
        guards: tuple[Guard, ...] = (
            *self._module_guards.values(), *self._state_guards.values(), *self._constants.guards, *self._memory(steps)
        )  # fmt: skip
        return ExecutionPlan(steps, len(self._slot), unused, result, guards, constants)

    def _without_passing_on(self) -> tuple[Sequence[ProgramStep | _Segment], int]:
        """Return the steps and the slot of the result, without a last step that passes on what a program gives."""
        output = self._gm.graph.output_node()
        match self._steps, output.args[0]:
            case [*before, ProgramStep() as program, _Segment(nodes=[only])], Node() as given if only is output:
                if (slot := self._slot.get(given)) in program.output_slots:
                    return [*before, program], slot
        return self._steps, self._slot_of(output)

    def _memory(self, steps: Iterable[Step]) -> Iterator[MemoryGuard]:
        """Guard the memory that programs read of tensors which a pickle of the model would hold."""
        held = {
            leaf.untyped_storage().data_ptr()
            for module in self._gm.modules()
            for name, value in vars(module).items()
            if name not in ("_modules", "_packed", "_graph")
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided
        }
        constants = (x for step in steps if isinstance(step, ProgramStep) for x in step.program.constants)
        return (MemoryGuard(x, x.data_ptr()) for x in constants if x.untyped_storage().data_ptr() in held)

    def _slot_of(self, node: Node) -> int:
        return self._slot.setdefault(node, len(self._slot))

    def _fold(self, node: Node) -> bool:
        """Try to fold a node into a constant; False if it runs in each call."""
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            owner = self._gm.get_submodule(path)
            constants = self._constants.add_attribute(node, owner, name, self._call(node))
            self._guard_path(path)
        else:
            constants = self._constants.attempt(node, self._fixed.__contains__, lambda: self._call(node))
        if not constants:
            return False
        self._values[node] = value = self._constants.values[node]
        if holds_numbers(value):
            self._fixed[node] = value
        return True

    def _place_node(self, node: Node) -> None:
        # A module is recorded or runs in Python: what it holds may change, so its result is never folded.
        if node.op != "call_module" and (self._fold(node) or self._place_size_or_view(node)):
            return
        reason = self._by_program(node)
        if reason is not None:
            self._by_python(node, reason)

    def _place_size_or_view(self, node: Node) -> bool:
        """Try to run a node without computing.

        A number that follows from shapes is fixed, a view joins a Python segment that is open.
        """
        if any(used in self._varying for used in node.all_input_nodes):
            return False
        try:
            with ForbidCompute():  # views and sizes pass, other operators raise
                value = self._call(node)
        except Exception:  # whatever is wrong with the model shows where it runs as it is
            return False
        if holds_numbers(value):  # a size, or what is computed of sizes
            self._values[node] = self._fixed[node] = value
            return True
        if not holds_tensors(value):  # an object of the user's, in which tensors may be
            return False
        if self._open is not None and self._open.recording is None:
            self._by_python(node, "a view of what Python computed")  # no program begins with a view
            return True
        return False

    def _by_program(self, node: Node) -> str | None:
        """Record the node; why it cannot be recorded, otherwise."""
        module = module_of(node)
        if node.op == "call_module" and not isinstance(module, QuantizedModule):
            return "a module that is not quantized"
        if any(used in self._varying for used in node.all_input_nodes):
            return "it depends on numbers that are computed in each call"
        try:
            if self._open is None or self._open.recording is None:
                self._close()
                self._open = _Segment(Recording())
            segment = self._open
            assert segment.recording is not None
            self._read(node, segment, segment.recording)
            # Run it, and note its loops. Whatever else it does raises.
            value = segment.recording.attempt(lambda: _checked(self._call(node)))
        except Exception as error:  # as above
            if self._open is not None and not self._open.nodes:
                self._open = None
            return str(error).partition("\n")[0] or type(error).__name__
        segment.values[node] = value
        self._constants.note_read(node)  # a later write to a constant that was read makes the plan wrong
        segment.nodes.append(node)
        segment.loops_after.append(segment.recording.loops)
        if isinstance(module, QuantizedModule):
            self._state_guards[module] = StateGuard(module, module._packed)
            self._guard_path(str(node.target))
        return None

    def _read(self, node: Node, segment: _Segment, recording: Recording) -> None:
        """Name what the node reads of other segments as inputs of the program: copies, which share no memory."""
        folded = self._constants.values
        for used in node.all_input_nodes:
            if used in self._fixed or used in folded or used in segment.values:
                continue
            value = self._values[used]
            if type(value) not in (Tensor, nn.Parameter) or not value.is_cpu or not _is_plain(value):
                raise NotRecordableError("it reads what is no plain tensor on the CPU")
            copied = clone_reversed(value)
            recording.add_input(copied)
            segment.inputs.append(used)
            segment.values[used] = copied

    def _by_python(self, node: Node, reason: str) -> None:
        if self._open is not None and self._open.recording is not None:
            self._close()
        if self._open is None:
            self._open = _Segment(None)
        self._constants.note_read(node)  # a later write to a constant that was read makes the plan wrong
        value = self._call(node)
        self._values[node] = value
        self._reasons[node] = reason
        if node.op != "get_attr" and not isinstance(value, Tensor) and not holds_tensors(value):
            self._varying.add(node)
        self._open.nodes.append(node)

    def _call(self, node: Node) -> Any:
        inside = {} if self._open is None else self._open.values

        def values_of(argument: Any) -> Any:  # the argument, with values in place of nodes
            return with_values(argument, lambda used: inside[used] if used in inside else self._values[used])

        args, kwargs = values_of(node.args), values_of(node.kwargs)
        match node.op:
            case "call_module":
                return self._gm.get_submodule(str(node.target))(*args, **kwargs)
            case "call_function":
                return node.target(*args, **kwargs)  # type: ignore[operator]
            case "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            case "get_attr":
                value: Any = self._gm
                for name in str(node.target).split("."):
                    value = getattr(value, name)
                return value
        return args[0]

    def _close(self) -> None:
        """Make a step of the segment."""
        segment, self._open = self._open, None
        if segment is None or not segment.nodes:
            return
        step = None
        if segment.recording is not None:
            for node in segment.nodes:
                self._values[node] = self._call(node)
            step = self._program(segment, segment.recording)
        if step is not None:
            self._steps.append(step)
        elif self._steps and isinstance(before := self._steps[-1], _Segment):
            before.nodes += segment.nodes
        else:
            self._steps.append(_Segment(None, segment.nodes))

    def _python(self, segment: _Segment) -> PythonStep:
        outside = (used for node in segment.nodes for used in node.all_input_nodes if used not in segment.nodes)
        read = list(dict.fromkeys(used for used in outside if used not in self._fixed))
        outputs = self._read_elsewhere(segment)
        body = [node for node in segment.nodes if node.op != "output"]
        results = tuple(node.args[0] if node.op == "output" else node for node in outputs)
        return PythonStep(
            tuple(self._slot_of(node) for node in read),
            tuple(self._slot_of(node) for node in outputs),
            function_of(body, read, results, self._fixed),
            tuple(self._layout(node) for node in outputs),
            tuple((node.name, self._reasons[node]) for node in body),
        )

    def _read_elsewhere(self, segment: _Segment) -> list[Node]:
        known = {*segment.nodes, *self._fixed}  # a size that is known is asked of nobody
        return [node for node in segment.nodes if node.op == "output" or not known.issuperset(node.users)]

    def _program(self, segment: _Segment, recording: Recording) -> ProgramStep | None:
        outputs = self._read_elsewhere(segment)
        recorded = [value for node in outputs for value in _items(segment.values[node])]
        wanted = [value for node in outputs for value in _items(self._values[node])]
        program: Program | None = None
        reason = "views alone, which are no quicker in a program"
        try:
            if recording.loops:
                program = recording.finish(recorded)
                if not program.reproduces([self._values[node] for node in segment.inputs], wanted):
                    program, reason = None, "the program gave other values"
                    warn_of_dropped("a program gave other values than the graph that it was made of", segment.nodes)
        except KernelError as error:
            program, reason = None, str(error).partition("\n")[0]
        except MemoryError:
            raise
        except Exception as error:  # whatever it is: the user has what the graph gave
            program, reason = None, f"its program failed: {kind_and_words(error)}"
            warn_of_dropped("a program failed while it was made", segment.nodes, error)
        finally:
            recording.drop()
        if program is None:
            self._reasons.update(dict.fromkeys(segment.nodes, reason))
            return None
        # The program gives its results in a row: which of them is the value of each output slot?
        next_result = itertools.count()
        results_of_slots = tuple(
            next(next_result) if isinstance(value, Tensor) else tuple(next(next_result) for _ in value)
            for value in (self._values[node] for node in outputs)
        )
        return ProgramStep(
            tuple(self._slot_of(node) for node in segment.inputs),
            tuple(self._slot_of(node) for node in outputs),
            program,
            results_of_slots,
            len(segment.nodes),
            program.loops,
            names_of_chains(program.chains, segment.nodes, segment.loops_after),
        )

    def _layout(self, node: Node) -> TensorLayout | None:
        value = self._values[node]
        return layout_of(value) if isinstance(value, Tensor) else None

    def _guard_path(self, path: str) -> None:
        owner: Any = self._gm
        for end, name in enumerate(path.split(".") if path else (), start=1):
            module = owner._modules[name]
            self._module_guards.setdefault(".".join(path.split(".")[:end]), ModuleGuard(owner._modules, name, module))
            owner = module


def _is_plain(x: Tensor) -> bool:
    return x.layout is torch.strided and not has_pending_conj_or_neg(x)


def _items(value: Any) -> Sequence[Tensor]:
    return (value,) if isinstance(value, Tensor) else value


def _checked(value: Any) -> Any:
    """Return a value that a program can give: tensors that autograd does not follow, or a tuple or list of them."""
    tensors = value if type(value) in (tuple, list) else (value,)
    if any(type(item) is not Tensor or needs_gradient(item) or has_pending_conj_or_neg(item) for item in tensors):
        raise NotRecordableError("it gives what is no plain tensor, or one that autograd follows")
    return value
