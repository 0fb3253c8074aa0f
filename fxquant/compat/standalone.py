"""Connects a converted model with its standalone modules that take or give quantized values."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from fxquant.graph.edit import add_module, insert_after
from fxquant.graph.inputs import signature_of
from fxquant.graph.module import get_metadata
from fxquant.graph.query import VALUE, module_of, value_of
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.plan.spec import QParams


def connect_standalone(gm: GraphModule) -> None:
    """Quantize, in place, what a standalone module takes as integers, and dequantize what it gives as integers.

    The module knows the qparams of both: it has measured its inputs and its results.
    """
    for node in list(gm.graph.nodes):
        child = module_of(node)
        taken, given = (get_metadata(child, f"integer_{which}") or {} for which in ("inputs", "outputs"))
        if node.op != "call_module" or child is None:
            continue
        names = list(signature_of(child).parameters)
        for name, source in (*zip(names, node.args, strict=False), *node.kwargs.items()):
            if name in taken and isinstance(source, Node):
                _quantize(gm, source, node, taken[name])
        if given:
            _dequantize(gm, node, given)
    gm.recompile()


def _quantize(gm: GraphModule, source: Node, reader: Node, qparams: QParams) -> None:
    path = add_module(gm, f"{source.name}_quantize_for_{reader.name}", Quantize(qparams).eval())
    insert_after(source, path, users=(reader,))


def _dequantize(gm: GraphModule, node: Node, given: Mapping[int, QParams]) -> None:
    results = {0: node}
    if isinstance(node.meta.get(VALUE), tuple):
        items = [(user.args[1], user) for user in node.users if user.target is operator.getitem]
        results = {place: user for place, user in items if isinstance(place, int)}
    for place, result in results.items():
        if place in given:
            info = value_of(result)
            module = Dequantize(given[place], torch.float32 if info is None else info.dtype).eval()
            insert_after(result, add_module(gm, f"{result.name}_dequantize", module), users=tuple(result.users))
