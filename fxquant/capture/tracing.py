"""From a module to a graph: what stays whole, where each node comes from, and what to do where tracing fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.capture.bare_layers import with_layer_inside
from fxquant.capture.copies import carry_over, check_unscripted, copy_of, runs_its_graph
from fxquant.capture.hooks import has_computed_weights, materialize_parametrizations, weights_by_modules
from fxquant.capture.identity_checks import asks_by_identity
from fxquant.capture.leaf_modules import LeafModules, check_leaf_modules, check_taken, mark_module_calls
from fxquant.capture.optional_arguments import Traced, trace_optional
from fxquant.capture.same_results import check_results
from fxquant.capture.tracer import QuantTracer
from fxquant.graph.assumptions import assume_values
from fxquant.graph.inputs import bind_example, optional_inputs
from fxquant.graph.module import NamedGraphModule
from fxquant.graph.shapes import record_values


def trace(
    model: nn.Module,
    *,
    example_args: tuple[Any, ...] | None,
    example_kwargs: Mapping[str, Any] | None = None,
    leaf_modules: LeafModules = (),
    leaf_types: Sequence[type[nn.Module]] = (),
    keep_untraceable: bool = False,
    trains: bool = False,
    copies: bool = True,
) -> GraphModule:
    """Trace a copy of ``model``, run the example through it once, and record what is known of every value.

    Stays whole, as one ``call_module`` node: a ``torch.nn`` module (containers aside), a subclass of one that computes
    the same, and what ``leaf_modules`` and ``leaf_types`` name. Names of modules, parameters and buffers are the
    user's; modules and parameters that ``forward`` never uses are left out. An argument whose example (or default)
    is None, a bool or a str is fixed to that value, because code branches on it; the traced module refuses another one.
    Code may branch and loop on shapes, dtypes and numbers that come of them: it is traced as the example goes, and the
    traced module refuses inputs that would go another way. A buffer that ``forward`` assigns to is assigned to last;
    so is a tensor attribute, which becomes a buffer outside of the state dict. Other attributes that it changes make it
    untraceable, unless a second call does the same as the first: then they are what they were before the first.
    Functions that ``torch.fx.wrap`` names are traced through.
    A recurrent layer or an attention that is the whole model is called as one, below the name of its class.
    Weights that parametrizations, weight norms or pruning masks compute become plain ones of the same value, unless
    the graph is to train: then it computes them, and layers of ``torch.nn`` with such weights become functions.
    Hooks of a module that is traced through run once, while tracing: what they compute becomes part of the graph; those
    that return nothing are warned of, as are those of the backward pass, which do not run. Random numbers are drawn
    anew in each call.

    Args:
        model: Any module, also one that is traced already (whose graph is then taken as it is). It is not changed.
        example_args: Positional inputs. None: nothing is run, and nothing is known of shapes. Where that
            cannot be traced otherwise, arguments with defaults are left out; else they are given. A call without one
            that code compares with None is then an error.
        example_kwargs: Keyword inputs.
        leaf_modules: Types (subclasses too) or qualified names kept whole and in float.
        leaf_types: Types (no subclasses) that patterns name: kept whole.
        keep_untraceable: Keep the smallest submodules that cannot be traced whole and in float, with a warning.
        trains: Whether the graph is to be trained.
        copies: False where the model is one that nobody else holds: it is then changed.

    Returns:
        A GraphModule with the name of the model's class. ``node.meta`` holds what ``graph.query`` asks for.

    Raises:
        InputError: the example does not fit the signature of ``forward``, or does not run.
        UnknownNameError: ``leaf_modules`` names what the model does not have.
        TracingError: the model cannot be copied or traced; the message names the submodule and the user's line.
    """
    # Check what was given, and copy the model.
    check_unscripted(model)
    kwargs = dict(example_kwargs or {})
    bound = None if example_args is None else bind_example(model, example_args, kwargs)
    check_leaf_modules(model, leaf_modules)
    own = copy_of(model) if copies else model
    if not trains:
        materialize_parametrizations(own)
    layer, own = own, with_layer_inside(own, has_example=bound is not None)
    found: Traced | None = None
    if isinstance(own, GraphModule) and runs_its_graph(own):
        check_taken(own, leaf_modules)

    # Take the graph that is there, or trace.
    takes_graph = runs_its_graph(own) and not (trains and has_computed_weights(own))
    if takes_graph and isinstance(own, NamedGraphModule):
        gm = own
    elif takes_graph and isinstance(own, GraphModule):
        gm = NamedGraphModule(own, own.graph, type(model).__name__)
        carry_over(own, gm)
    else:

        def attempt(marks_training_flag: bool) -> Traced:
            """Trace with new tracers; one more whenever a submodule cannot be traced, and is kept whole."""

            def make_tracer(paths: tuple[str, ...], factories: bool, left_out: Mapping[str, Any]) -> QuantTracer:
                whole = *leaf_modules, *paths
                return QuantTracer(whole, leaf_types, bound, factories, marks_training_flag, left_out)

            defaults = optional_inputs(own) if bound is None else {}
            bare = bound is None and own is not layer
            return trace_optional(make_tracer, own, defaults, leave_out=bare, keep_untraceable=keep_untraceable)

        with weights_by_modules(own) if trains else nullcontext():
            found = _traced_with_modes(attempt, own) if trains else attempt(False)
        graph, _, tracer = found
        if bound is not None:
            another = partial(copy_of, own, shares_parameters=True)
            check_results(another, (example_args, kwargs), tracer.result, "torch.fx")
        tracer.lost_hooks.warn()
        gm = NamedGraphModule(own, graph, type(model).__name__)
        carry_over(own, gm)

    # Record in node.meta what is known of each value: modules, then shapes and dtypes.
    untraceable = () if found is None else found[1]
    mark_module_calls(gm, leaf_modules, leaf_types, {one.path: one.reason for one in untraceable})
    if example_args is None:
        assume_values(gm)
    elif isinstance(own, GraphModule):  # else the tracer has run the example along with the trace
        record_values(gm, example_args, kwargs)
    for one in untraceable:
        one.warn()
    return gm


def _traced_with_modes(attempt: Callable[[bool], Traced], model: nn.Module) -> Traced:
    """Trace with a marked ``self.training``, unlike a literal False; with the bool where code takes nothing else."""
    if asks_by_identity(model):
        return attempt(False)
    try:
        marked = attempt(True)
    except Exception:
        return attempt(False)  # which fails by itself, if that was not why
    if not marked[1]:
        return marked
    plain = attempt(False)
    return plain if len(plain[1]) < len(marked[1]) else marked
