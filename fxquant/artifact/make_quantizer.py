"""Makes a Quantizer of its float graph and of what ``describe_quantizer`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from fxquant.artifact.configuration import decode_configuration, maker_at
from fxquant.artifact.describe_quantizer import STATE
from fxquant.artifact.example import decode_example
from fxquant.artifact.fitting_plan import check_boundaries, check_plan, pattern_names, weight_nodes
from fxquant.artifact.makers import Maker, bytes_of, decode_maker
from fxquant.artifact.plan import decode_plan
from fxquant.artifact.rounding import decode_rounding
from fxquant.artifact.values import decode, fits
from fxquant.errors import ArtifactError
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed, TensorRef
from fxquant.quantizer.restore import Parts, restore

FIELDS = {
    *("backend", "makers", "configuration", "input_observer", "patterns", "example", "plan", "fake_quants"),
    *("trained", "joins", "rounding", "warned", "integers"),
}


def make_quantizer(data: Any, tensors: Mapping[str, Tensor], gm: GraphModule, nodes: int, size: int) -> Any:
    """Make a Quantizer.

    Args:
        data: What ``describe_quantizer`` wrote.
        tensors: Of the file.
        gm: The float graph.
        nodes: How many units, refusals and tensors of a plan there may be at most.
        size: Bytes of the file.

    Raises:
        ArtifactError: it is no description of one.
    """
    if not isinstance(data, dict) or set(data) != FIELDS or not isinstance(data["trained"], bool):
        raise ArtifactError("the file describes a prepared model with other fields")
    # The plan, and whether it is one of this graph.
    makers = _makers(data["makers"], nodes)
    patterns = pattern_names(data["patterns"])
    plan = replace(decode_plan(data["plan"], tensors, nodes, makers), fake_quants=_fake_quants(data["fake_quants"]))
    trained = plan.qparams if data["trained"] else None
    learned = {} if data["trained"] else plan.qparams
    plan = replace(plan, qparams={})
    check_plan(plan, gm, patterns)
    integers = [decode(item) for item in _row(data["integers"])]
    check_boundaries(plan, gm, *integers)
    _check_memory(plan, size)
    # What it was asked for, and what was measured.
    example = data["example"]
    if not isinstance(example, list) or len(example) != 2:
        raise ArtifactError("the file describes no example inputs")
    args, kwargs = map(decode_example, example)
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise ArtifactError("the example inputs in the file are no tuple and no dict")
    given = data["input_observer"]
    parts = Parts(
        backend=str(data["backend"]),
        config=decode_configuration(data["configuration"], makers),
        example_args=args,
        example_kwargs=kwargs,
        input_observer=None if given is None else maker_at(makers, given),
        plan=plan,
        trained=trained,
        learned=learned,
        joins=_joins(data["joins"], plan, gm),
        weight_layers=decode_rounding(data["rounding"], tensors, gm, plan, weight_nodes(plan)),
        warned=_warned(data["warned"]),
        integer_inputs=integers[0],
        integer_outputs=integers[1],
        state={name.removeprefix(STATE): value for name, value in tensors.items() if name.startswith(STATE)},
    )
    return restore(gm, parts)


def _makers(data: Any, limit: int) -> list[Maker]:
    if not isinstance(data, list) or len(data) > limit:
        raise ArtifactError("the file holds no observers, or more than allowed", expected=f"at most {limit}")
    return [decode_maker(item) for item in data]


def _check_memory(plan: QuantPlan, size: int) -> None:
    """Refuse observers that take more memory than the file has: each of their buffers is in it."""
    activations = [policy for ref, policy in plan.policies.items() if ref.kind == "activation"]
    makers = [policy.observer for policy in activations if isinstance(policy, Observed)]
    sizes = {id(maker): bytes_of(maker) for maker in {id(maker): maker for maker in makers}.values()}
    if (wanted := sum(sizes[id(maker)] for maker in makers)) > size:
        raise ArtifactError(
            "the file wants more memory than it is long",
            got=f"observers of {wanted:,} bytes",
            expected=f"at most {size:,}",
        )


def _fake_quants(data: Any) -> dict[TensorRef, str]:
    found = {}
    for item in _rows(data, 2):
        ref = decode(item[0])
        if not isinstance(ref, TensorRef) or not isinstance(item[1], str):
            raise ArtifactError("the file names a fake-quantize module of nothing")
        found[ref] = item[1]
    return found


def _joins(data: Any, plan: QuantPlan, gm: GraphModule) -> dict[str, list[tuple[str, float, float]]]:
    names = {node.name for node in gm.graph.nodes}
    found = {}
    for name, parts in _rows(data, 2):
        rows = [(item[0], decode(item[1]), decode(item[2])) for item in _rows(parts, 3)]
        if name not in names or not all(isinstance(part, str) and fits(ends, list[float]) for part, *ends in rows):
            raise ArtifactError("the file holds ranges of a join that is none", got=ascii(name)[:120])
        found[name] = rows
    return found


def _warned(data: Any) -> set[tuple[str, str]]:
    rows = _rows(data, 2)
    if not all(isinstance(text, str) for row in rows for text in row):
        raise ArtifactError("the file holds no list of warnings")
    return {(name, kind) for name, kind in rows}


def _row(data: Any) -> list[Any]:
    return list(_rows([data], 2)[0])


def _rows(data: Any, length: int) -> list[Any]:
    if not isinstance(data, list) or not all(isinstance(item, list) and len(item) == length for item in data):
        raise ArtifactError("the file describes a prepared model that cannot be read", got=ascii(data)[:120])
    return data
