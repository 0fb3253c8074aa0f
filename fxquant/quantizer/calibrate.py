"""Calibrate: run data through the float graph, and show each activation of the plan to its observer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from tqdm import tqdm

from fxquant.calibration.batches import batches
from fxquant.calibration.interpreter import CalibrationInterpreter, check_like_example, run_with_hooks
from fxquant.calibration.module_paths import module_paths_of
from fxquant.calibration.observers import observers_by_node
from fxquant.calibration.problems import find_problems, warn_of_problems
from fxquant.calibration.range_history import FEWEST_BATCHES
from fxquant.errors import CalibrationError, error_context, warn
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.inputs import bind
from fxquant.plan.spec import Means, Observed
from fxquant.quantizer.branches import observed_branches
from fxquant.quantizer.data import PreparedModel, outside_inference_mode

Prepared = TypeVar("Prepared", bound=PreparedModel)

MOST_BATCHES = 1000
"""Where ``until_stable`` ends at the latest, unless ``num_batches`` says otherwise."""


@outside_inference_mode
def observe_batch(prepared: PreparedModel, /, *args: Any, **kwargs: Any) -> Any:
    """Run one batch, show every planned activation to its observer, and return the float output.

    A batch that fails changes no observer. ``calibrate`` calls ``prepared.observe``, which is this function unless a
    subclass overrides it. Threads may each have a Quantizer, or take turns on one.

    Raises:
        CalibrationError: the model was trained, and has no observers.
    """
    check_has_observers(prepared)
    prepared.weight_checksums.record(prepared.graph_module)  # in the first batch: convert warns if they change later
    with torch.no_grad(), prepared.run_state.undone_on_error():
        # Beside the observers of the plan: those of the calibration report, from which no qparams come.
        for_report = prepared.calibration_statistics.observers_of_next_batch()
        shown = observers_by_node(prepared.plan, prepared.observers, for_report)
        result = run_float_graph(prepared, shown, args, kwargs)
        prepared.calibration_statistics.update(prepared.observers)
        return result


def run_float_graph(
    prepared: PreparedModel, shown: Mapping[str, Sequence[nn.Module]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run the float graph on one batch, and return its output.

    Args:
        prepared: Whose graph it is.
        shown: Name of a node -> the observers that see its value.
        args: The positional inputs.
        kwargs: The others.
    """
    gm = prepared.graph_module

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = bind(gm, args, kwargs, "the inputs")
        check_like_example(bound, prepared.example_bound, "the inputs")
        # Handlers of the user's patterns, and those that show branches of torch.cond what these are called with.
        handlers = {**prepared.handlers, **observed_branches(prepared)}
        inside = prepared.plan.rounding_inside()  # recurrent layers, whose observers see the values inside
        return CalibrationInterpreter(gm, bound, shown, handlers, inside).run()

    return run_with_hooks(gm, run, args, kwargs)


def check_has_observers(prepared: PreparedModel) -> None:
    """Refuse a model whose qparams are those of training.

    Raises:
        CalibrationError: it was trained, and has no observers.
    """
    measured = any(
        isinstance(policy, Means) or (ref.kind == "activation" and isinstance(policy, Observed))
        for ref, policy in prepared.plan.policies.items()
    )
    if prepared.trained is not None and measured and not len(prepared.observers):
        raise CalibrationError(
            "this model was trained: it has the qparams of training, and no observers",
            got="a batch to observe",
            expected="convert, which needs no data",
            hint="its graph_module is the float model, which runs and observes nothing",
        )


@outside_inference_mode
def calibrate_prepared(
    prepared: Prepared,
    data: Iterable[Any],
    *,
    num_batches: int | None = None,
    progress: bool = True,
    until_stable: bool = False,
) -> Prepared:
    """Call ``prepared.observe`` with every batch of ``data``, and warn of what looks wrong.

    Arguments and errors are those of :func:`fxquant.calibrate`.
    """
    statistics = prepared.calibration_statistics
    limit = MOST_BATCHES if until_stable and num_batches is None else num_batches
    stable = False
    example = prepared.example_args if prepared.has_example else None
    found = batches(data, example, prepared.graph_module, num_batches=limit, progress=progress)
    with prepared.run_state.buffers_undone():  # what is converted begins as the float model does
        for index, (args, kwargs) in enumerate(found):
            with error_context(f"calibration batch {index}"):
                prepared.observe(*args, **kwargs)  # observe_batch, unless a subclass overrides it
            if until_stable and (stable := statistics.stable(prepared.observers)):
                break
    if until_stable:
        _say_where_it_stopped(stable, int(statistics.history.batches), progress)
        # Warn again of ranges that still move: this call asked for stable ones.
        prepared.warned = {(name, kind) for name, kind in prepared.warned if kind != "moving"}
    warn_of_calibration(prepared)
    return prepared


def _say_where_it_stopped(stable: bool, batches: int, progress: bool) -> None:
    """Tell what ``until_stable`` came to: a line beside the progress bar, or a warning."""
    if not stable:
        if batches < FEWEST_BATCHES:  # with more, warn_of_calibration names the values that still moved
            warn(
                "calibration data ended before it could be told whether the ranges have settled",
                got=f"{batches} batches",
                expected=f"at least {FEWEST_BATCHES}",
            )
        return
    text = f"all ranges have settled: calibration stopped after {batches} batches"
    logging.getLogger("fxquant").info(text)
    if progress:
        tqdm.write(text, file=sys.stderr)


def warn_of_calibration(prepared: PreparedModel) -> None:
    """Warn of each problem of the calibration, once."""
    # Observers of training stand inside of fake-quantize modules.
    observers = {name: observer_in(made) for name, made in prepared.observers.items()}
    if found := find_problems(prepared.calibration_statistics, observers):
        places = module_paths_of(prepared.calibration_statistics.refs, prepared.graph_module, prepared.plan)
        warn_of_problems(found, places, prepared.warned)
