"""Where tracing fails: the smallest submodule is kept whole, and the line at fault is named."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph

from fxquant.capture.tracing import trace
from fxquant.capture.untraceable import is_same_graph
from fxquant.errors import FxQuantWarning, TracingError
from fxquant.graph.query import reason_of

X = torch.rand(2, 3)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.linear(row) for row in x])


class Counter(nn.Module):
    """Keeps a sum in an attribute that is no buffer, which no graph can."""

    total: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.sum()
        return x


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(3, 3), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x)) + 1


@pytest.mark.parametrize(
    ("inner", "meaning"),
    [
        (Branch(), "a branch (if, while, and, or, assert) on the value of a tensor"),
        (Loop(), "a loop over a tensor or over something made of one, whose length is not known"),
        (Counter(), "a change of self.total: a graph keeps only tensors that a module has from the start"),
    ],
)
def test_the_smallest_submodule_is_kept_whole(inner, meaning):
    model = Outer(Outer(inner)).eval()
    with pytest.warns(FxQuantWarning) as caught:
        gm = trace(model, example_args=(X,), keep_untraceable=True)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith(f"torch.fx cannot trace the submodule 'inner.inner' (a {type(inner).__name__})")
    assert f"got:      {meaning}" in text
    assert f"at:       {__file__}:" in text
    assert text.splitlines()[1].rpartition(": ")[2] in inspect.getsource(type(inner))
    kept = [node for node in gm.graph.nodes if node.target == "inner.inner"]
    assert reason_of(kept[0]).startswith(f"torch.fx cannot trace it: {meaning}")
    assert {str(node.target) for node in gm.graph.nodes if node.op == "call_module"} == {
        "before",
        "inner.before",
        "inner.inner",
    }
    assert torch.equal(gm(X), model(X))
    assert torch.equal(gm(-X), model(-X))


def test_several_submodules_are_kept_each_with_a_warning():
    model = nn.Sequential(Branch(), nn.Linear(3, 3), Loop()).eval()
    with pytest.warns(FxQuantWarning) as caught:
        gm = trace(model, example_args=(X,), keep_untraceable=True)
    assert [str(warning.message).split("'")[1] for warning in caught] == ["0", "2"]
    assert torch.equal(gm(X), model(X))


def test_a_kept_module_goes_on_counting():
    model = nn.Sequential(nn.Linear(3, 3), Counter()).eval()
    with pytest.warns(FxQuantWarning):
        gm = trace(model, example_args=(X,), keep_untraceable=True)
    assert gm.get_submodule("1").total == 0.0  # the example left no trace
    with torch.no_grad():
        assert torch.equal(gm(X), model(X))
        assert torch.equal(gm(-X), model(-X))
        assert torch.equal(gm.get_submodule("1").total, model[1].total)


def test_the_models_own_forward_cannot_be_kept():
    with pytest.raises(TracingError) as caught:
        trace(Branch(), example_args=(X,), keep_untraceable=True)
    assert str(caught.value).startswith("torch.fx cannot trace the forward of the model itself (a Branch)")


def test_without_leave_the_first_is_an_error():
    with pytest.raises(TracingError) as caught:
        trace(nn.Sequential(Branch()), example_args=(X,))
    assert str(caught.value).startswith("torch.fx cannot trace the submodule '0' (a Branch)")


class Keeps(nn.Module):
    """Attributes of every kind, and a forward that is given."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(3, 3)
        self.table, self.made, self.count, self.seen = torch.ones(3), None, 0, []
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x))


def scales_a_tensor(m: Any, x: Tensor) -> Tensor:
    m.table *= 1.5
    return x * m.table


def scales_a_tensor_by_method(m: Any, x: Tensor) -> Tensor:
    m.table.mul_(1.5)
    return x * m.table


def replaces_a_tensor_by_numbers(m: Any, x: Tensor) -> Tensor:
    m.table = m.table * 1.5
    return x * m.table


def replaces_a_tensor(m: Any, x: Tensor) -> Tensor:
    m.table = m.table + x.mean(0)
    return x * m.table


def makes_a_table_once(m: Any, x: Tensor) -> Tensor:
    if m.made is None:
        m.made = torch.arange(3.0)
    return x * m.made


def makes_a_buffer_once(m: Any, x: Tensor) -> Tensor:
    if m.cache is None:
        m.cache = torch.arange(3.0)
    return x * m.cache


def makes_a_larger_table_once(m: Any, x: Tensor) -> Tensor:
    if m.table.shape[0] < 5:
        m.table = torch.arange(5.0)
    return x * m.table[:3]


def makes_a_table_for_each_size(m: Any, x: Tensor) -> Tensor:
    if m.made is None or m.made.shape[0] != x.shape[0]:
        m.made = torch.arange(x.shape[0], dtype=x.dtype)
    return x * m.made[:, None]


def keeps_tables_in_a_list(m: Any, x: Tensor) -> Tensor:
    if not m.seen or m.seen[0] != x.shape:
        m.seen = [x.shape, torch.arange(x.shape[0], dtype=x.dtype)]
    return x * m.seen[1][:, None]


def counts_in_vain(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return x


STEADY = (
    scales_a_tensor,
    scales_a_tensor_by_method,
    replaces_a_tensor_by_numbers,
    replaces_a_tensor,
    makes_a_table_once,
    makes_a_buffer_once,
    makes_a_larger_table_once,
    makes_a_table_for_each_size,
    keeps_tables_in_a_list,
    counts_in_vain,
)


@pytest.mark.parametrize("wrap", [lambda m: m, nn.Sequential], ids=["the model's own", "a submodule's"])
@pytest.mark.parametrize("function", STEADY, ids=lambda function: function.__name__)
def test_calls_follow_each_other(function, wrap):
    model = wrap(Keeps(function).eval())
    gm = trace(model, example_args=(X,))
    assert gm.state_dict().keys() == {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        assert [torch.equal(gm(x), model(x)) for x in (X, X + 1, X[:1], X * 2)] == [True] * 4


def counts(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return x * m.count


def behaves_otherwise_from_the_second_call_on(m: Any, x: Tensor) -> Tensor:
    if m.made is None:
        m.made = "known"
        return x
    return x * 2


def keeps_in_a_list(m: Any, x: Tensor) -> Tensor:
    m.seen.append(x)
    return x


def counts_rows(m: Any, x: Tensor) -> Tensor:
    m.count = m.count + x.shape[0]
    return x * m.count


CHANGING = {
    counts: "count",
    counts_rows: "count",
    behaves_otherwise_from_the_second_call_on: "made",
    keeps_in_a_list: "seen",
}


@pytest.mark.parametrize("function", CHANGING, ids=lambda function: function.__name__)
def test_what_the_second_call_would_do_otherwise_is_no_graph(function):
    class Own(Keeps):
        """With the forward where its source can be found."""

    Own.forward = function
    meaning = f"a change of self.{CHANGING[function]}: a graph keeps only tensors that a module has from the start"
    model = Own(function).eval()
    with pytest.raises(TracingError) as caught:
        trace(model, example_args=(X,))
    assert f"got:      {meaning}" in str(caught.value)
    assert f"at:       {__file__}:" in str(caught.value)
    assert f": m.{CHANGING[function]}" in str(caught.value).splitlines()[1]
    outer = nn.Sequential(nn.Linear(3, 3), model)
    with pytest.warns(FxQuantWarning) as warned:
        gm = trace(outer, example_args=(X,), keep_untraceable=True)
    assert f"got:      {meaning}" in str(warned[0].message)
    with torch.no_grad():
        assert [torch.equal(gm(x), outer(x)) for x in (X, X + 1)] == [True] * 2
    assert str((model.count, model.made, len(model.seen))) in (
        "(2, None, 0)",
        "(4, None, 0)",
        "(0, 'known', 0)",
        "(0, None, 2)",
    )


def test_a_function_of_another_package(tmp_path, monkeypatch):
    """The line is the user's, and the hint, followed to the letter, works."""
    package = tmp_path / "site-packages" / "tensorkit"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text("from tensorkit.inner import swapped\n")
    package.joinpath("inner.py").write_text(
        "import torch\n\ndef check(x):\n    if type(x) is not torch.Tensor:\n        raise RuntimeError('unknown')\n\n"
        "def swapped(x):\n    check(x)\n    return x.transpose(0, 1)\n"
    )
    body = "\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    body += "        self.a = nn.Linear(4, 4)\n\n"
    call = "    def forward(self, x):\n        return self.a({}(self.a(x)).t())\n"
    (tmp_path / "net_one.py").write_text(
        "import tensorkit\nfrom torch import nn\n" + body + call.format("tensorkit.swapped")
    )
    (tmp_path / "net_two.py").write_text(
        'import torch\nfrom torch import nn\nfrom tensorkit import swapped\n\ntorch.fx.wrap("swapped")\n'
        + body
        + call.format("swapped")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(package.parent))
    x = torch.rand(4, 4)
    with pytest.raises(TracingError) as caught:
        trace(importlib.import_module("net_one").Net().eval(), example_args=(x,))
    assert "net_one.py:11: return self.a(tensorkit.swapped(self.a(x)).t())" in str(caught.value)
    assert str(caught.value).endswith(
        'hint:     "from tensorkit import swapped", and torch.fx.wrap("swapped") behind it, where that line stands, '
        "keep the call of swapped whole and in float"
    )
    model = importlib.import_module("net_two").Net().eval()
    assert torch.equal(trace(model, example_args=(x,))(x), model(x))


class Holder(nn.Module):
    def __init__(self, value: float, name: str = "a") -> None:
        super().__init__()
        self.register_buffer(name, torch.tensor([value, float("nan")]))


def graph(target=torch.add, attribute: str = "a", first: bool = True, number: float = 1, calls: int = 1) -> Graph:
    made = Graph()
    x = made.placeholder("x")
    constant = made.get_attr(attribute) if first else None
    y = x
    for _ in range(calls):
        y = made.call_function(torch.mul, (y, number))
    made.output((made.call_function(target, (y, constant or made.get_attr(attribute))),))
    return made


ROOT = Holder(1.0)


@pytest.mark.parametrize(
    ("other", "root"),
    [(graph(), ROOT), (graph(), Holder(1.0)), (graph(attribute="b", first=False), Holder(1.0, "b"))],
    ids=["itself", "equal values", "another name, read at another place"],
)
def test_the_same(other, root):
    assert is_same_graph(graph(), ROOT, other, root)


@pytest.mark.parametrize(
    ("other", "root"),
    [
        (graph(), Holder(2.0)),
        (graph(torch.sub), ROOT),
        (graph(number=2), ROOT),
        (graph(number=True), ROOT),
        (graph(calls=2), ROOT),
    ],
    ids=["another constant", "another function", "another number", "another type of number", "one more call"],
)
def test_another(other, root):
    assert not is_same_graph(graph(), ROOT, other, root)


def cut(stop: str = "half", step: int | None = None, number: float = float("nan")) -> Graph:
    """``x[:, :half:step] * number``, where half is one of two nodes."""
    made = Graph()
    x = made.placeholder("x")
    sizes = {name: made.call_method("size", (x, dim)) for name, dim in (("half", 0), ("other", 1))}
    part = made.call_function(operator.getitem, (x, (slice(None), slice(None, sizes[stop], step))))
    made.output((made.call_function(torch.mul, (part, number)),))
    return made


def test_slices_are_the_same_where_their_ends_are():
    assert is_same_graph(cut(), ROOT, cut(), ROOT)
    for other in (cut("other"), cut(step=2), cut(number=1.0)):
        assert not is_same_graph(cut(), ROOT, other, ROOT)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([float("nan"), 1.0], [float("nan"), 1.0], True),
        ([float("nan"), 1.0], [0.0, 1.0], False),
        ([float("inf")], [torch.finfo(torch.float32).max], False),
        ([1.0], [1.0 + 2**-23], False),
        ([complex("nan"), 1j], [complex("nan"), 1j], True),
        ([True, False], [True, False], True),
        ([1, 2], [1, 3], False),
    ],
)
def test_constants_are_the_same_value_by_value(one, other, same):
    roots = [nn.Module(), nn.Module()]
    for root, values in zip(roots, (one, other), strict=True):
        root.register_buffer("a", torch.tensor(values))
    assert is_same_graph(graph(), roots[0], graph(), roots[1]) is same


class KeptTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(4)
        return self.linear(x[: x.size(0) // 2] + self.table)


def test_a_model_that_keeps_a_table_and_slices_by_a_size_is_traced():
    gm, x = trace(KeptTable().eval(), example_args=(torch.rand(8, 4),)), torch.rand(6, 4)
    assert torch.equal(gm(x), gm.linear(x[:3] + 1))
