from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node

from fxquant.capture.tracing import trace
from fxquant.graph.aliases import changed_argument, may_hold_tensor, plain_form, roots_of
from fxquant.graph.operators.table import OPERATORS

X = torch.linspace(0.5, 2, 32).reshape(2, 4, 2, 2)


class Fn(nn.Module):
    def __init__(self, function, **parts) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def nodes_of(function, **parts) -> list[Node]:
    return list(trace(Fn(function, **parts).eval(), example_args=(X,)).graph.nodes)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: x.add_(1),
        lambda self, x: torch.relu_(x),
        lambda self, x: F.relu(x, inplace=True),
        lambda self, x: F.relu(x, True),
        lambda self, x: F.hardtanh_(x),
        lambda self, x: operator.imul(x, 2),
        lambda self, x: operator.setitem(x, 0, 1.0),
        lambda self, x: torch.add(x, 1, out=x),
        lambda self, x: torch.ops.aten.add_.Tensor(x, x),
        lambda self, x: self.relu(x),
    ],
    ids=["method", "function", "keyword", "position", "F", "operator", "setitem", "out", "overload", "module"],
)
def test_in_place_calls_are_recognised(function):
    nodes = nodes_of(function, relu=nn.ReLU(inplace=True))
    assert changed_argument(nodes[1]) is nodes[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: x + 1,
        lambda self, x: F.relu(x),
        lambda self, x: x.requires_grad_(False),
        lambda self, x: operator.iadd(x.size(0), 1),
        lambda self, x: operator.imatmul(x, x),
        lambda self, x: self.relu(x),
        lambda self, x: self.dropout(x),
        lambda self, x: x.__invert__() if x is None else x.__neg__(),
    ],
    ids=["add", "relu", "requires_grad_", "number", "matmul", "module", "dropout", "dunder"],
)
def test_other_calls_change_nothing(function):
    nodes = nodes_of(function, relu=nn.ReLU(), dropout=nn.Dropout(inplace=True))
    assert [changed_argument(node) for node in nodes[:-1]] == [None] * (len(nodes) - 1)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda self, x: x.clamp_min_(1), ("call_method", "clamp_min")),
        (lambda self, x: operator.imod(x, 2), ("call_function", operator.mod)),
        (lambda self, x: torch.ceil_(x), ("call_function", torch.ceil)),
        (lambda self, x: x.zero_(), None),
        (lambda self, x: x.bernoulli_(0.5), None),
        (lambda self, x: x.eq_(1), None),
    ],
    ids=["method", "operator", "function", "fill", "random", "other dtype"],
)
def test_plain_form(function, expected):
    assert plain_form(nodes_of(function)[1]) == expected


VIEWS = {
    torch.flatten: lambda self, x: torch.flatten(x, 1),
    torch.reshape: lambda self, x: torch.reshape(x, (2, -1)),
    torch.permute: lambda self, x: torch.permute(x, (3, 2, 1, 0)),
    torch.transpose: lambda self, x: torch.transpose(x, 0, 1),
    torch.unsqueeze: lambda self, x: torch.unsqueeze(x, 0),
    torch.chunk: lambda self, x: torch.chunk(x, 2)[0],
    torch.split: lambda self, x: torch.split(x, 1)[0],
    F.dropout: lambda self, x: F.dropout(x, training=False),
    F.pixel_shuffle: lambda self, x: F.pixel_shuffle(x, 1),
    F.pixel_unshuffle: lambda self, x: F.pixel_unshuffle(x, 1),
}
COPIES_ON_CPU = {F.pixel_shuffle, F.pixel_unshuffle}  # other devices compose them of reshapes and a permutation
WEIGHTS = {
    *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    *(F.linear, F.embedding),
}
NORMS = {F.batch_norm, F.layer_norm, F.group_norm}
ARGUMENTS = {
    torch.cat: ([X],),
    torch.stack: ([X],),
    torch.add: (X, 0),
    torch.sub: (X, 0),
    torch.rsub: (X, 0),
    torch.mul: (X, 1),
    torch.div: (X, 1),
    torch.pow: (X, 1),
    torch.matmul: (X, X),
    torch.bmm: (X[0], X[0]),
    F.scaled_dot_product_attention: (X, X, X),
    torch.mm: (X[0, 0], X[0, 0]),
    torch.mv: (X[0, 0], X[0, 0, 0]),
    **dict.fromkeys((torch.dot, torch.vdot, torch.inner, torch.outer), (X[0, 0, 0], X[0, 0, 0])),
    **dict.fromkeys((torch.addmm, torch.addcmul), (X[0, 0], X[0, 0], X[0, 0])),
    **dict.fromkeys((torch.baddbmm,), (X[0], X[0], X[0])),
    torch.addbmm: (X[0, 0], X[0], X[0]),
    torch.addmv: (X[0, 0, 0], X[0, 0], X[0, 0, 0]),
    torch.addr: (X[0, 0], X[0, 0, 0], X[0, 0, 0]),
    torch.lerp: (X, X, 0.0),
    torch.tensordot: (X, X.mT, 1),
    torch.clamp: (X, -9.0, 9.0),
    torch.clamp_min: (X, -9.0),
    torch.clamp_max: (X, 9.0),
    F.threshold: (X, -9.0, 0.0),
    F.prelu: (X, torch.ones(1)),
    torch.sum: (X, (), True),
    torch.mean: (X[:1, :1, :1, :1], (0,), True),
    F.softmax: (X, 1),
    F.embedding_bag: (torch.zeros(2, 3, dtype=torch.long), torch.randn(4, 5)),
    F.pad: (X, (0, 0)),
    F.interpolate: (X, (2, 2)),
    F.max_pool1d: (X[0], 1),
    F.max_pool2d: (X, 1),
    F.max_pool3d: (X, 1),
    F.avg_pool1d: (X[0], 1),
    F.avg_pool2d: (X, 1),
    F.avg_pool3d: (X, 1),
    F.adaptive_avg_pool1d: (X[0], 2),
    F.adaptive_avg_pool2d: (X, 2),
    F.adaptive_avg_pool3d: (X, (4, 2, 2)),
    F.adaptive_max_pool1d: (X[0], 2),
    F.adaptive_max_pool2d: (X, 2),
    F.adaptive_max_pool3d: (X, (4, 2, 2)),
}


@pytest.mark.parametrize("target", VIEWS, ids=lambda target: target.__name__)
def test_rows_marked_as_views_may_share_memory(target):
    shares = VIEWS[target](None, X).untyped_storage().data_ptr() == X.untyped_storage().data_ptr()
    assert shares or target in COPIES_ON_CPU
    known = {}
    nodes = nodes_of(VIEWS[target])
    for node in nodes:
        known[node] = roots_of(node, known)
    assert nodes[0] in known[nodes[-2]]


def test_every_other_row_computes_into_new_memory_even_where_it_changes_nothing():
    for row in OPERATORS:
        if row.target in VIEWS:
            assert row.view
        elif row.target not in WEIGHTS | NORMS:
            assert not row.view
            out = row.target(*ARGUMENTS.get(row.target, (X,)))
            assert out.untyped_storage().data_ptr() != X.untyped_storage().data_ptr(), row.target


def test_roots():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.zeros(1))
            self.leaf = nn.Identity()

        def forward(self, x):
            y = x * 2
            return self.leaf(y), y.size(0), self.shift.view(1), torch.einsum("abcd->dcba", y), y.clone()

    known = {}
    for node in trace(Net(), example_args=(X,)).graph.nodes:
        known[node] = roots_of(node, known)
    by_name = {node.name: (node, roots) for node, roots in known.items()}
    mul = by_name["mul"][0]
    assert by_name["mul"][1] == {mul}
    assert mul in by_name["leaf"][1]
    assert mul in by_name["einsum"][1]  # not known: it may be a view
    assert by_name["size"][1] == frozenset()
    assert ("attribute", "shift") in by_name["view"][1]
    assert by_name["clone"][1] == {by_name["clone"][0]}
    assert not may_hold_tensor(by_name["size"][0])
    assert may_hold_tensor(by_name["leaf"][0])


def test_item_assignment_as_a_method_of_a_graph_that_was_made_by_hand():
    graph = Graph()
    x = graph.placeholder("x")
    change = graph.call_method("__setitem__", (x, 0, 1.0))
    assert changed_argument(change) is x
