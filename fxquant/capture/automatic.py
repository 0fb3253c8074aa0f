"""Makes the graph of a model: torch.fx traces it, and ``torch.export`` takes what torch.fx cannot trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fxquant.capture.attempts import EXPORT, FX, Capture, check_way
from fxquant.capture.copies import check_runs, copy_of
from fxquant.capture.exported.exporting import check_program, export_and_import, export_model
from fxquant.capture.exported.in_place import put_in_place
from fxquant.capture.leaf_modules import LeafModules, mark_module_calls
from fxquant.capture.tracing import trace
from fxquant.capture.untraceable import UNTRACEABLE
from fxquant.errors import FxQuantError, FxQuantWarning, InputError, TracingError
from fxquant.graph.inputs import bind_example, check_not_nested, signature_of
from fxquant.graph.module import NamedGraphModule, get_metadata, set_metadata
from fxquant.graph.query import reason_of
from fxquant.graph.shapes import record_values


def captured(
    model: nn.Module,
    how: str,
    *,
    example_args: tuple[Any, ...] | None,
    example_kwargs: Mapping[str, Any] | None = None,
    leaf_modules: LeafModules = (),
    leaf_types: Sequence[type[nn.Module]] = (),
    keep_untraceable: bool = False,
    trains: bool = False,
) -> GraphModule:
    """Make a graph of a copy of ``model``, as ``trace`` does.

    Args:
        model: Any module. One that is traced already is taken as it is.
        how: ``"fx"``: by ``trace`` alone. ``"export"``: by ``torch.export`` alone. ``"auto"``: by ``trace``; of the
            submodule that it cannot trace ``torch.export`` makes the graph, or else of the whole model.
        example_args: As for ``trace``, as are the others.
        example_kwargs: The same.
        leaf_modules: The same. What they name is never exported.
        leaf_types: The same.
        keep_untraceable: The same; with ``"auto"``, of what ``torch.export`` does not take either.
        trains: The same.

    Raises:
        UnknownNameError: ``how`` is none of the three.
        InputError: as ``trace``.
        TracingError: as ``trace``; or the model is to be exported, and cannot be.
    """
    try:
        return _captured(model, how, example_args, example_kwargs, leaf_modules, leaf_types, keep_untraceable, trains)
    except TracingError as error:
        if example_args is not None:  # a model that fails by itself is no matter of tracing
            check_runs(model, example_args, dict(example_kwargs or {}), error)
        raise


def _captured(
    model: nn.Module,
    how: str,
    example_args: tuple[Any, ...] | None,
    example_kwargs: Mapping[str, Any] | None,
    leaf_modules: LeafModules,
    leaf_types: Sequence[type[nn.Module]],
    keep_untraceable: bool,
    trains: bool,
) -> GraphModule:
    check_way(how)
    check_not_nested((example_args, example_kwargs), "the example inputs")
    if example_args is None and how == "export":
        raise InputError("torch.export runs example inputs", got="None", expected="a tuple of the positional inputs")
    kwargs = dict(example_kwargs or {})
    # For a model that torch.fx can trace, `trace` (tracing.py) is all that runs. What follows may be tried otherwise.
    trace_model = partial(trace, example_args=example_args, example_kwargs=kwargs, leaf_types=leaf_types, trains=trains)
    if example_args is None:  # there is nothing to export, or to compare results on
        return trace_model(model, leaf_modules=leaf_modules, keep_untraceable=keep_untraceable)
    attempts = _Attempts(model, example_args, kwargs, tuple(leaf_modules), tuple(leaf_types), trace_model)
    if how == "fx" or isinstance(model, GraphModule):
        return attempts.traced((), keep_untraceable)
    if how == "export":
        bind_example(model, example_args, kwargs)
        gm = attempts.exported()
        return attempts.finished(gm, {}) if attempts.attempts[-1].fixed else gm
    return attempts.automatic(keep_untraceable)


@dataclass
class _Attempts:
    """The attempts to make a graph of one model, until one succeeds."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaf_modules: tuple[Any, ...]
    leaf_types: tuple[type[nn.Module], ...]
    trace_model: Callable[..., GraphModule]
    """``trace`` with the example inputs and ``leaf_types``."""
    attempts: list[Capture] = field(default_factory=list)
    """Those that the coverage tells of."""

    def traced(self, exported: tuple[str, ...], keep_untraceable: bool) -> GraphModule:
        """Trace the model.

        ``exported`` are the paths of submodules that have graphs already: they stay whole in this one.
        """
        whole = (*self.leaf_modules, *exported)
        return self.trace_model(self.model, leaf_modules=whole, keep_untraceable=keep_untraceable)

    def automatic(self, keep_untraceable: bool) -> GraphModule:
        """Trace; export what cannot be traced; keep in float, if at all, what cannot be exported either."""
        # Trace, until nothing fails any more: a submodule that cannot be traced is exported.
        inside: dict[str, NamedGraphModule] = {}
        while True:
            failure: FxQuantError
            path = ""
            try:
                return self.finished(self.traced(tuple(inside), False), inside)
            except TracingError as error:
                if error.submodule is None:
                    raise
                path, failure = error.submodule, error
                self.attempts.append(Capture(path, FX, error.summary))
            except InputError as error:  # another call of an exported submodule has other arguments
                if not inside:
                    raise
                failure = error
                self.attempts = [replace(one, error=one.error or error.summary) for one in self.attempts]
                inside = {}
            # Export the submodule, and trace again with its graph in place of it.
            part = self._part(path) if path and path not in inside else None
            if part is not None:
                inside[path] = part
                continue
            # Nothing helped: export the whole model, or leave what fails as it is.
            try:
                return self.finished(self.exported(), {})
            except TracingError as error:
                self.attempts.append(Capture("", EXPORT, error.summary))
            if not keep_untraceable:
                raise failure
            return self._with_whole_parts(inside)

    def _with_whole_parts(self, inside: dict[str, NamedGraphModule]) -> GraphModule:
        """Trace, and keep whole what can neither be traced nor exported, but nothing else."""
        tried = {one.path for one in self.attempts}
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FxQuantWarning)
                gm = self.traced(tuple(inside), True)
            kept = {str(node.target): reason_of(node) or "" for node in gm.graph.nodes if node.op == "call_module"}
            new = {path: why for path, why in kept.items() if path not in tried and why.startswith(UNTRACEABLE)}
            if not new:
                return self.finished(self.traced(tuple(inside), True), inside)
            for path, why in new.items():
                tried.add(path)
                self.attempts.append(Capture(path, FX, why.removeprefix(UNTRACEABLE)))
                if (part := self._part(path)) is not None:
                    inside[path] = part

    def exported(self) -> GraphModule:
        """Export the whole model."""
        self._check_no_leaf("", self.model)
        program = export_model(self.model, self.args, self.kwargs)
        gm = self.trace_model(program, leaf_modules=self.leaf_modules, copies=False)
        check_program(self.model, gm, self.args, self.kwargs)
        self.attempts.append(Capture("", EXPORT, fixed=get_metadata(program, "fixed_sizes")))
        return gm

    def _part(self, path: str) -> NamedGraphModule | None:
        """Export a submodule on what the model calls it with; None if that fails."""
        try:
            module = copy_of(self.model).get_submodule(path)
            self._check_no_leaf(path, module)
            called = copy_of(self.model, shares_parameters=True)  # a run may change buffers
            args, kwargs = _inputs_of(called, path, self.args, self.kwargs)
            gm = export_and_import(module, args, kwargs, f"the submodule {path!r}")
        except TracingError as error:
            self.attempts.append(Capture(path, EXPORT, error.summary))
            return None
        self.attempts.append(Capture(path, EXPORT, fixed=get_metadata(gm, "fixed_sizes")))
        return gm

    def _check_no_leaf(self, path: str, module: nn.Module) -> None:
        """Refuse to take apart what is to stay whole: ``torch.export`` cannot know of it."""
        classes = tuple(item for item in self.leaf_modules if isinstance(item, type))
        own = tuple(kind for kind in self.leaf_types if getattr(nn, kind.__name__, None) is not kind)
        inside = [
            name
            for name, one in module.named_modules(prefix=path)
            if name in self.leaf_modules or isinstance(one, classes) or type(one) in own
        ]
        if inside:
            raise TracingError(
                "torch.export cannot keep modules whole",
                got=f"{inside[0]!r}, which leaf_modules or a pattern of your own names",
            )

    def finished(self, gm: GraphModule, inside: Mapping[str, NamedGraphModule]) -> GraphModule:
        """Put the graphs of submodules in place, and note what was tried."""
        for path, part in inside.items():
            put_in_place(gm, path, part)
        if inside:
            _tie(gm, self.model)
            mark_module_calls(gm, self.leaf_modules, self.leaf_types, {})
            record_values(gm, self.args, self.kwargs)
        if self.attempts:
            set_metadata(gm, captures=tuple(self.attempts))
        return gm


def _clones(inputs: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), inputs)


def _inputs_of(
    model: nn.Module, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run a copy of the model, and return the arguments of the first call of the submodule at ``path``."""
    module = model.get_submodule(path)
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    handle = module.register_forward_pre_hook(lambda _, given, named: seen.append((given, named)), with_kwargs=True)
    copies = _clones((args, dict(kwargs)))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            model(*copies[0], **copies[1])
    except Exception as error:
        raise TracingError(
            "the model does not run on the example inputs", got=f"{type(error).__name__}: {error}"
        ) from error
    finally:
        handle.remove()
    if not seen:
        raise TracingError("the model does not call the submodule as a module")
    return _by_name(module, *_clones(seen[0]))


def _by_name(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give every argument, those with defaults too: another call may give what this one leaves out."""
    kinds = {parameter.kind for parameter in signature_of(module).parameters.values()}
    if not kinds <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}:
        return args, dict(kwargs)
    return (), bind_example(module, args, kwargs)


def _tie(gm: GraphModule, model: nn.Module) -> None:
    """Let parameters that are one in the model be one in the graph, too."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    own = dict(gm.named_parameters(remove_duplicate=False))
    for alike in names.values():
        first, *others = [name for name in alike if name in own] or [""]
        for name in others:
            parent, _, attribute = name.rpartition(".")
            gm.get_submodule(parent).register_parameter(attribute, own[first])
