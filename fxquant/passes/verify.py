"""FXQUANT_VERIFY=1: run the example before and after a pass that promises to keep values, and compare."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import PassError
from fxquant.graph.shapes import run_example
from fxquant.passes.base import PassContext

TOLERANCE = 1e-4
"""Largest difference allowed, as a share of the largest magnitude of the value: folding a batch norm moves a rounding
of float32 (6e-8) from the activations into the weights, in each layer anew."""

Values = dict[str, Any]


def run_values(gm: GraphModule, ctx: PassContext) -> Values:
    """Node name -> a copy of its value on the example inputs; ``"output"`` is what the model gives."""
    values: Values = {}

    def keep(node: Node, value: Any) -> None:
        values[node.name] = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)

    run_example(gm, ctx.example_args, ctx.example_kwargs, keep)
    return values


def compare(name: str, before: Values, after: Values) -> None:
    """Compare the outputs.

    Raises:
        PassError: they differ by more than ``TOLERANCE``; the message names the pass, the first node whose value
            differs, and the largest difference of the output.
    """
    worst = difference(before["output"], after["output"])
    if worst <= TOLERANCE:
        return
    first = next(
        (node for node, value in after.items() if node in before and difference(before[node], value) > TOLERANCE),
        "output",
    )
    raise PassError(
        f"pass {name!r} promises to keep values, and changed them",
        at=f"{first}, the first node whose value differs",
        got=f"an output that differs by {worst:.3g} of its largest magnitude",
        expected=f"at most {TOLERANCE:g}",
        hint=f"FXQUANT_SKIP_PASSES={name} leaves the pass out",
    )


def difference(before: Any, after: Any) -> float:
    """Largest difference, as a share of the largest magnitude of ``before``; inf if the two do not compare."""
    old, old_spec = pytree.tree_flatten(before)
    new, new_spec = pytree.tree_flatten(after)
    if old_spec != new_spec:
        return float("inf")
    return max((_difference(a, b) for a, b in zip(old, new, strict=True)), default=0.0)


def _difference(a: Any, b: Any) -> float:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return 0.0 if type(a) is type(b) and a == b else float("inf")
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if torch.equal(a, b) or a.numel() == 0:
        return 0.0
    same = (a == b) | ((a != a) & (b != b))  # inf equals inf, and NaN equals NaN
    gap = torch.where(same, 0.0, (a.double() - b.double()).abs()).max()
    if not bool(gap.isfinite()):
        return float("inf")
    return float(gap / a[a.isfinite()].double().abs().max().clamp(min=torch.finfo(torch.float32).tiny))
