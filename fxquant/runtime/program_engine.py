"""Keeps the execution plans of one converted model, and runs the one that fits a call."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.errors import InputError, KernelError, UnknownNameError
from fxquant.graph.module import ENGINE
from fxquant.kernels.interception import is_intercepted
from fxquant.kernels.library import native_status
from fxquant.registry import did_you_mean
from fxquant.runtime.compiling import compile_graph
from fxquant.runtime.execution_plan import (
    ExecutionPlan,
    ShapesChangedError,
    kind_and_words,
    layout_of,
    warn_of_failed_plan,
    without_programs,
)
from fxquant.runtime.program import Program, give_memory_back, library
from fxquant.runtime.recording import has_pending_conj_or_neg
from fxquant.settings import debug_output, read_settings

ENGINES = ("graph", "program")
"""What may run a converted model."""

logger = logging.getLogger("fxquant")

PLANS = 8
"""How many shapes of inputs have plans at a time."""
SEEN = 64
"""How many shapes are remembered after their first call: a plan is made in the second call."""

SHAPES_DEPEND_ON_VALUES = "shapes depend on values"
"""Why the graph runs in place of a plan, where a step gave a tensor of another shape than before."""

_PLAIN_TYPES = frozenset((int, float, bool, str, type(None)))
_global_hooks = torch.nn.modules.module._global_forward_hooks
_global_pre_hooks = torch.nn.modules.module._global_forward_pre_hooks


@dataclass(frozen=True, slots=True)
class LatestPlan:
    """The plan of the call before, and what a call has to be like to run it: plain tensors that need no gradient."""

    plan: ExecutionPlan
    plans: dict[Hashable, ExecutionPlan]
    """All plans at that time: where the engine has others by now, this one may be dropped."""
    program: Program | None
    """All of the plan, where it is one program of one input and one result."""
    grad_enabled: bool
    inputs: tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]
    """Of each argument: dtype, shape and strides."""

    @classmethod
    def of(cls, plan: ExecutionPlan, plans: dict[Hashable, ExecutionPlan], args: tuple[Any, ...]) -> LatestPlan | None:
        """Describe a call; None if its inputs are not all plain tensors that need no gradient."""
        if any(type(x) is not Tensor or x.requires_grad for x in args):
            return None
        inputs = tuple((x.dtype, x.shape, x.stride()) for x in args)
        latest = cls(plan, plans, plan.only_program if len(args) == 1 else None, torch.is_grad_enabled(), inputs)
        return latest if latest.fits(args) else None

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Tell whether ``_key`` would find this plan for these inputs."""
        if len(args) != len(self.inputs) or torch.is_grad_enabled() is not self.grad_enabled:
            return False
        try:
            for x, (dtype, shape, strides) in zip(args, self.inputs, strict=True):
                if (
                    type(x) is not Tensor
                    or x.dtype is not dtype
                    or x.shape != shape
                    or not x.is_cpu
                    or x.layout is not torch.strided
                    or x.stride() != strides
                    or x.requires_grad
                    or has_pending_conj_or_neg(x)
                ):
                    return False
        except RuntimeError:  # of a nested tensor, which has no shape; to ask each input for that would take time
            return False
        return True


class ProgramEngine:
    """Runs a converted graph by programs of native operators: the same bits, without Python in between.

    A plan is made for each shape of the inputs, when it comes the second time; the first call packs what is not packed
    yet. A shape stands here for all that a plan depends on (``_key``): shapes, dtypes, strides, whether gradients are
    wanted, and the numbers, strings and None among the inputs. The least recently used plans are dropped. Whatever
    changes a module (a state dict that is loaded, a hook, another module in its place) makes its plans invalid. Where a
    program cannot run, the graph does: for other devices, for arguments that are given by keyword, that are neither
    plain tensors nor one of these, or whose default is not, under ``torch.compile``, ``torch.export``, transforms and
    modes that intercept operators; with a warning where one cannot be made.

    The plan that ran last is tried first, before a key is made (``shortcut``): a call of a small model takes a few
    microseconds, and half of them went into finding its plan.

    Copies and pickles of a model begin without plans.
    """

    def __init__(self) -> None:
        self._plans: dict[Hashable, ExecutionPlan] = {}
        self._latest: LatestPlan | None = None
        self._seen: dict[Hashable, bool] = {}
        """Key of a first call -> whether values that follow from shapes and parameters alone may be folded."""
        self._lock = threading.Lock()
        self._clock = itertools.count(1)

    def __call__(
        self, gm: GraphModule, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run ``forward(gm, *args, **kwargs)`` by a plan if there is one."""
        key = None if kwargs else _key(args)
        if key is None or _is_intercepted():
            return forward(gm, *args, **kwargs)
        plans = self._plans
        plan = plans.get(key)
        if plan is None:
            return self._first_calls(key, gm, forward, args)
        if plan.fallback_reason:
            return forward(gm, *args)
        if not plan.is_valid():
            self.invalidate()
            return forward(gm, *args)
        plan.used = next(self._clock)
        self._latest = LatestPlan.of(plan, plans, args)
        try:
            return plan.run(gm, args)
        except ShapesChangedError:
            plan.fallback_reason, self._latest = SHAPES_DEPEND_ON_VALUES, None
            return forward(gm, *args)

    @staticmethod
    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        """Make the ``forward`` of a model.

        It looks the engine up in each call. Under ``torch.compile`` and ``torch.export`` it calls ``forward`` itself.
        """

        @functools.wraps(forward)
        def run(gm: GraphModule, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return forward(gm, *args, **kwargs)
            return gm.__dict__[ENGINE](gm, forward, args, kwargs)

        return run

    @staticmethod
    def shortcut(forward: Callable[..., Any], explained: Callable[..., Exception]) -> Callable[..., Any]:
        """Make the ``forward`` of a model that runs the plan of the call before, where it fits this call too.

        Args:
            forward: Does everything else: what ``wrap`` made, and what is around it.
            explained: ``(model, args, kwargs, error)`` -> what to raise for an error of a call.
        """

        @functools.wraps(forward)
        def run(gm: GraphModule, /, *args: Any, **kwargs: Any) -> Any:
            if kwargs or torch.compiler.is_compiling():
                return forward(gm, *args, **kwargs)
            engine: ProgramEngine = gm.__dict__[ENGINE]
            latest = engine._latest
            if (
                latest is None
                or latest.plans is not engine._plans
                or not latest.fits(args)
                or _is_intercepted()
                or not latest.plan.is_valid()
            ):
                return forward(gm, *args)
            plan = latest.plan
            plan.used = next(engine._clock)
            if latest.program is not None:
                return latest.program.call_with_one(args[0])
            try:
                return plan.run(gm, args)
            except ShapesChangedError:
                plan.fallback_reason, engine._latest = SHAPES_DEPEND_ON_VALUES, None
            except Exception as error:
                if (other := explained(gm, args, {}, error)) is error:
                    raise
                raise other from error
            return forward(gm, *args)

        return run

    def invalidate(self) -> None:
        """Drop all plans."""
        with self._lock:
            self._plans, self._seen, self._latest = {}, {}, None

    @property
    def plans(self) -> tuple[ExecutionPlan, ...]:
        """Return the plans that are held now."""
        return tuple(self._plans.values())

    def _first_calls(self, key: Hashable, gm: GraphModule, forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        defaults = tuple(default for node in placeholders[len(args) :] for default in node.args)
        given = (*args, *defaults)
        if library() is None:
            return forward(gm, *args)
        # A plan needs a value for each placeholder: with *args it would be a tuple, which has no key.
        variadic = any(str(node.target).startswith("*") for node in placeholders)
        known = not variadic and len(placeholders) == len(given) and _key(defaults) is not None
        if key not in self._seen or not known or not self._lock.acquire(blocking=False):
            if len(self._seen) >= SEEN:
                self._seen = {}
            result = forward(gm, *args)
            self._seen.setdefault(key, True)
            return result
        try:
            plan, result = self._compiled(gm, forward, given, fold_constants=self._seen.get(key, True))
            if plan is None:  # the next call makes a plan without constants
                self._seen[key] = False
                return result
            plans = {**self._plans, key: plan}
            if len(plans) > PLANS:
                del plans[min(plans, key=lambda each: plans[each].used)]
                self._latest = None  # which holds the memory of all plans before
            plan.constants += tuple(enumerate(defaults, len(args)))  # inputs have the first slots
            plan.used = next(self._clock)
            self._plans = plans
            with debug_output(read_settings()):  # FXQUANT_DEBUG shows the plan
                logger.info("%s", plan)
            give_memory_back()  # recording keeps all tensors until its end
            return result
        finally:
            self._lock.release()

    def _compiled(
        self, gm: GraphModule, forward: Callable[..., Any], args: tuple[Any, ...], *, fold_constants: bool
    ) -> tuple[ExecutionPlan | None, Any]:
        """Return the result of ``compile_graph``; where that fails, run the graph, which may raise its own error."""
        try:
            return compile_graph(gm, args, fold_constants=fold_constants)
        except (MemoryError, KernelError):
            raise
        except Exception as error:
            failure = error
        result = forward(gm, *args)  # what is wrong with the model or the inputs is said by the graph
        warn_of_failed_plan(failure)
        return without_programs(kind_and_words(failure)), result

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> ProgramEngine:
        return ProgramEngine()

    def __str__(self) -> str:
        return "\n".join(str(plan) for plan in self.plans) or "no program yet"


def attach_engine(gm: GraphModule, engine: str | None, to: str = "int8") -> None:
    """Let a converted model run by an engine.

    Args:
        gm: The model, on any device.
        engine: ``"graph"``: as its own code says. ``"program"``: by a :class:`ProgramEngine`. None: an int8 model by
            programs, where the native library was loaded; others as their code says.
        to: What it was converted to.

    Raises:
        UnknownNameError: there is no such engine.
        InputError: an engine was chosen for a model that is not int8.
        KernelError: programs were asked for by name, and there is no native library.
    """
    if engine not in (None, *ENGINES):
        raise UnknownNameError(
            "unknown engine", got=repr(engine), expected=", ".join(ENGINES), hint=did_you_mean(str(engine), ENGINES)
        )
    if to != "int8":
        if engine is not None:
            raise InputError(
                "only int8 models have an engine", got=f"to={to!r}, engine={engine!r}", expected="to='int8'"
            )
        return
    if engine == "program" and library() is None:
        raise KernelError(
            "programs are made of native operators, and these are not here",
            got="engine='program'",
            hint=native_status().reason or "engine='graph' runs on the Python reference",
        )
    if engine != "graph" and library() is not None:
        gm.__dict__[ENGINE] = ProgramEngine()
        gm.recompile()  # which has the engine wrap forward


def engine_of(gm: GraphModule) -> ProgramEngine | None:
    """Return the engine that runs a converted model, or None if its graph runs."""
    return gm.__dict__.get(ENGINE)


def without_engine(gm: GraphModule) -> GraphModule:
    """Return a copy of a converted model that runs operator by operator."""
    copied = copy.deepcopy(gm)
    if copied.__dict__.pop(ENGINE, None) is not None:
        copied.recompile()
    return copied


def _key(args: tuple[Any, ...]) -> Hashable:
    """Make the key of the plan for these inputs; None if no plan can run them."""
    key: list[Hashable] = [torch.is_grad_enabled()]
    for value in args:
        if type(value) is Tensor:
            if not value.is_cpu or value.layout is not torch.strided or value.is_nested:
                return None
            key.append(layout_of(value))
        elif type(value) in _PLAIN_TYPES:
            key.append((type(value), value))
        else:
            return None
    return tuple(key)


def _is_intercepted() -> bool:
    """Tell whether a mode, a transform or a global hook intercepts operators."""
    return is_intercepted() or bool(_global_hooks) or bool(_global_pre_hooks)
