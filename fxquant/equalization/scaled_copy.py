"""Makes a Quantizer of a scaled graph, and the simulation that its data leads to."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from fxquant.calibration.observed_qparams import qparams_of
from fxquant.errors import FxQuantWarning
from fxquant.passes.handlers import make_handlers
from fxquant.passes.pipelines import EQUALIZE
from fxquant.plan.region import Region, Split
from fxquant.quantizer.attach_observers import attach_observers
from fxquant.quantizer.convert import convert_by
from fxquant.quantizer.final_plan import final_plan
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.run_passes import run_passes

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def scaled_copy(
    prepared: Quantizer, factors: Sequence[tuple[Region, Tensor]], splits: Sequence[Split] = ()
) -> Quantizer:
    """Return a Quantizer of the scaled graph that has observed nothing. ``prepared`` is not changed."""
    scaled = copy.deepcopy(prepared)
    scaled.__dict__.pop("run_state", None)
    done = run_passes(scaled, EQUALIZE, scaled.graph_module, scaled.plan, factors, splits)
    scaled.graph_module, scaled.snapshots, scaled.plan = done.graph_module, done.snapshots, done.context.plan
    scaled.warned = set()
    attach_observers(scaled)
    scaled.handlers = make_handlers(scaled, scaled.graph_module, scaled.plan, scaled.patterns)
    scaled.weight_checksums.record(scaled.graph_module, anew=True)
    return scaled


def simulation(scaled: Quantizer, data: Iterable[Batch], seen: Callable[[], object]) -> GraphModule:
    """Calibrate, and return the simulation. What calibration and rounding warn of is said when the user does it.

    Args:
        scaled: It observes the data.
        data: Positional and keyword arguments of each batch.
        seen: Called after each batch.
    """
    for args, kwargs in data:
        scaled.observe(*args, **kwargs)
        seen()
    observers = dict(scaled.observers.items())
    qparams = qparams_of(scaled.graph_module, scaled.plan, observers, scaled.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)
        plan = final_plan(scaled, qparams)
        return convert_by(scaled, "fake_quant", plan)
