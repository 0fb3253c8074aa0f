"""One form of a quantized model, by a plan: int8, simulation or reference."""

from __future__ import annotations

import copy
import functools

from torch.fx import GraphModule

from fxquant.backends.base import Backend
from fxquant.errors import LoweringError, warn
from fxquant.graph.module import note
from fxquant.graph.module_state import make_ready
from fxquant.graph.query import follow
from fxquant.kernels.library import SETTINGS, native_status
from fxquant.measure.coverage import coverage
from fxquant.passes.pipelines import CONVERT
from fxquant.plan.quant_plan import QuantPlan
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import run_passes
from fxquant.runtime import attach_engine


def make_form(prepared: PreparedModel, to: str, plan: QuantPlan, engine: str | None = None) -> GraphModule:
    """Return a new module that quantizes by ``plan``.

    Args:
        prepared: Its graph is copied.
        to: A key of ``CONVERT``.
        plan: With the qparams of all activations.
        engine: As for :func:`convert`.
    """
    done = run_passes(prepared, CONVERT[to], copy.deepcopy(prepared.graph_module), plan)
    converted = done.graph_module
    converted.eval()  # the modules that passes made, too
    follow(converted, prepared.graph_module)
    make_ready(converted)
    found = coverage(prepared.graph_module, plan)
    note(converted, quant_form=to, quant_plan=done.context.plan, quant_coverage=found, snapshots=done.snapshots)
    attach_engine(converted, engine, to)
    return converted


def check_operators(backend: Backend) -> None:
    """Refuse to lower for a backend that only simulates.

    Raises:
        LoweringError: it is one.
    """
    if not backend.has_operators:
        raise LoweringError(
            f"backend {backend.name!r} has no integer operators",
            got="to='int8'",
            expected="to='reference' (integers between float operators) or to='fake_quant' (their values, in float)",
            hint="prepare with backend='cpu' for int8 on this machine",
        )
    warn_of_missing_kernels()


@functools.cache
def warn_of_missing_kernels() -> None:
    """Warn, once in a process, that int8 models are going to run on the Python reference, slowly, unasked."""
    status = native_status()
    if SETTINGS.kernels == "auto" and "cpu" not in status.devices:
        warn(
            "no native kernels are loaded, so int8 models run on the Python reference, slower than float",
            got=status.reason,
            hint="python -m fxquant doctor says more; FXQUANT_KERNELS=reference asks for the reference",
        )
