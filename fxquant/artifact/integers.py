"""Reads which inputs and results of a converted model are quantized values. Their qparams stand in the plan."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from fxquant.artifact.values import fits
from fxquant.errors import ArtifactError
from fxquant.passes.boundary_names import keep_integers
from fxquant.plan.quant_plan import QuantPlan


def check_integers(data: Any) -> tuple[list[str], list[int]]:
    """Return names and positions.

    Raises:
        ArtifactError: they are none.
    """
    if not isinstance(data, list) or len(data) != 2 or not fits(data[0], list[str]) or not fits(data[1], list[int]):
        raise ArtifactError("the file names no inputs and results as integers", got=ascii(data)[:120])
    names, places = data
    return names, places


def note_integers(model: GraphModule, plan: QuantPlan, data: Any) -> None:
    """Say what a model takes and gives as quantized values.

    Raises:
        ArtifactError: ``save`` writes no such thing.
        LoweringError: the plan has no qparams of it.
    """
    names, places = check_integers(data)
    if names or places:
        keep_integers(model, plan, names, places)
