"""Ways to write a forward: branches on values, structures, keywords, flags, modules that are kept whole."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning, InputError, TracingError

FORMS = ("int8", "fake_quant", "reference")


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0:
            return x * 2
        return -x


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.fc = nn.Conv2d(3, 4, 3), Gate(), nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gate(self.conv(x)).flatten(1))


@pytest.mark.parametrize("declared", [True, False])
def test_a_branch_on_values_is_taken_at_run_time(declared):
    model, x = Gated().eval(), torch.randn(16, 3, 8, 8)
    bright, dark = x + 2, x - 2
    if declared:
        prepared = fxq.prepare(model, bright, leaf_modules=("gate",))
    else:
        with pytest.warns(FxQuantWarning, match=r"the submodule 'gate' \(a Gate\)") as caught:
            prepared = fxq.prepare(model, bright)
        assert f"{__file__}:{Gate.forward.__code__.co_firstlineno + 1}: if x.mean() > 0:" in str(caught[0].message)
    int8 = fxq.convert(prepared.calibrate([bright, dark], progress=False))
    assert {"conv", "linear"} <= {unit.pattern for unit in prepared.plan.units}
    with torch.no_grad():
        for batch in (bright, dark):
            expected = model(batch)
            noise = (int8(batch) - expected).square().mean()
            assert float(10 * torch.log10(expected.square().mean() / noise)) >= 25


Pair = namedtuple("Pair", ["hidden", "raw"])


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


class Structured(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first, self.second, self.make = nn.Linear(8, 8), nn.Linear(8, 3), make

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.first(x))
        return self.make(self.second(hidden), hidden, x)


def as_dict(logits: Tensor, hidden: Tensor, x: Tensor) -> Any:
    return {"logits": logits, "aux": None, "pair": Pair(hidden, x), "list": [logits, (hidden, 3)]}


def as_ordered_dict(logits: Tensor, hidden: Tensor, x: Tensor) -> Any:
    return OrderedDict([("out", logits), ("raw", x)])


def as_dataclass(logits: Tensor, hidden: Tensor, x: Tensor) -> Any:
    return Output(logits, hidden)


def like(a: Any, b: Any) -> bool:
    """Whether two structures have the same types, keys, and constants."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Output):
        a, b = vars(a), vars(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(like(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(like, a, b))
    return a.shape == b.shape if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("make", [as_dict, as_ordered_dict, as_dataclass])
def test_structures_come_out_as_they_are(make):
    model, x = Structured(make).eval(), torch.randn(4, 8)
    prepared = fxq.prepare(model, x, strict=True).calibrate([x], progress=False)
    with torch.no_grad():
        expected = model(x)
        assert like(prepared(x), expected)
        for to in FORMS:
            got = fxq.convert(prepared, to=to)(x)
            assert like(got, expected), to
            if make is as_dict:
                assert got["pair"].raw is x
            if make is as_ordered_dict:
                assert got["raw"] is x


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)) + 1, p=0.5, training=self.training))


def test_a_functional_dropout_is_off_where_the_model_is_evaluated():
    model, x = Dropped().train(), torch.randn(32, 16)
    with pytest.warns(FxQuantWarning, match="the model is in training mode"):
        prepared = fxq.prepare(model, x)
    expected = model.eval()(x).detach()
    assert torch.equal(prepared(x), expected)
    for to in FORMS:
        converted = fxq.convert(prepared, to=to)
        assert not converted.training
        assert torch.equal(converted(x), converted(x))


class Router(nn.Module):
    """Has state and a layer of its own, and loops over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.stack([self.lin(x[i]) if float(x[i].sum()) > 0 else x[i] for i in range(len(x))])


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.router, self.head = nn.Linear(6, 4), Router(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.router(self.body(x)))


def test_a_leaf_keeps_its_state_and_its_names():
    model, x = Routed().eval(), torch.randn(64, 6)
    prepared = fxq.prepare(model, x, leaf_modules=("router",), strict=True)
    assert int(prepared.root.get_buffer("router.calls")) == 0
    prepared.calibrate([x], progress=False)
    assert int(prepared.root.get_buffer("router.calls")) == 1
    own = {name for name in model.state_dict() if name.startswith("router.")}
    for to in FORMS:
        converted = fxq.convert(prepared, to=to)
        assert {name for name in converted.state_dict() if name.startswith("router.")} == own
        assert torch.equal(converted.get_parameter("router.lin.weight"), model.router.lin.weight)
        assert type(converted.get_submodule("router.lin")) is nn.Linear
        with torch.no_grad():
            converted(x), converted(x)
        assert int(converted.get_buffer("router.calls")) == 3
    assert int(model.router.calls) == 0


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, q: Tensor, k: Tensor, bias: float = 0.5) -> Tensor:
        return self.q(q) - 2 * self.k(k) + bias


def test_keywords_in_any_order_and_defaults():
    model, q, k = Attention().eval(), torch.randn(16, 6), torch.randn(16, 6)
    prepared = fxq.prepare(model, (), example_kwargs={"k": k, "q": q})
    with torch.no_grad():
        expected = model(k=k, q=q)
    assert torch.equal(prepared(k=k, q=q), expected)
    assert torch.equal(prepared(q, k), expected)
    for to in FORMS:
        converted = fxq.convert(prepared, to=to)
        assert torch.equal(converted(k=k, q=q), converted(q, k))
        assert torch.equal(converted(q, k=k, bias=0.5), converted(q, k))


class Many(nn.Module):
    """Takes a list of tensors, a dict with an optional mask, and further ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, levels: list[Tensor], batch: dict[str, Any], *rest: Tensor, **named: Tensor) -> Tensor:
        out = torch.cat([self.a(level) for level in levels], 1) + self.b(batch["x"]).repeat(1, len(levels))
        if batch.get("mask") is not None:
            out = out * batch["mask"][:, None]
        for tensor in (*rest, *named.values()):
            out = out + self.a(tensor).repeat(1, 2)
        return out


@pytest.mark.parametrize("mask", [None, torch.tensor([True, False] * 8)])
def test_nested_inputs_and_spread_arguments(mask):
    model, tensors = Many().eval(), torch.randn(5, 16, 6).unbind()
    args = ([tensors[0], tensors[1]], {"x": tensors[2], "mask": mask}, tensors[3])
    prepared = fxq.prepare(model, args, example_kwargs={"more": tensors[4]})
    with torch.no_grad():
        expected = model(*args, more=tensors[4])
        assert torch.equal(prepared(*args, more=tensors[4]), expected)
        for to in FORMS:
            got = fxq.convert(prepared, to=to)(*args, more=tensors[4])
            assert float(10 * torch.log10(expected.square().mean() / (got - expected).square().mean())) >= 25
        with pytest.raises(InputError):
            prepared(args[0][:1], *args[1:], more=tensors[4])


class Sizes(nn.Module):
    """Makes constants of the sizes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.table = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.rand(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2)
        y = y + self.table[torch.arange(y.shape[1], device=x.device)]
        return y * torch.ones(y.size(0), 1, 4, dtype=y.dtype) + torch.zeros_like(y)


def test_constants_follow_the_sizes_of_the_input():
    model, x = Sizes().eval(), torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(model, x).calibrate([x], progress=False)
    with torch.no_grad():
        for to in FORMS:
            converted = fxq.convert(prepared, to=to)
            for shape in ((2, 3, 8, 8), (5, 3, 8, 8), (1, 3, 4, 6)):
                other = torch.randn(shape).clamp(-3, 3).to(memory_format=torch.channels_last)
                expected, got = model(other), converted(other)
                noise = (got - expected).square().mean()
                assert float(10 * torch.log10(expected.square().mean() / noise)) >= 20, (to, shape)


def not_on_values(function: Any) -> nn.Module:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    return nn.Sequential(nn.Linear(4, 4), Inner(), nn.Linear(4, 4)).eval()


UNTRACEABLE = {
    "if": (lambda x: x if x.sum() > 0 else -x, "a branch (if, while, and, or, assert) on the value of a tensor"),
    "loop": (lambda x: torch.stack([row * 2 for row in x]), "a loop over a tensor"),
    "item": (
        lambda x: x * float(x.max().item()),
        "int() or float() of a tensor, whose value is known only at run time",
    ),
    "numpy": (lambda x: torch.from_numpy(x.numpy() * 2), "a conversion to numpy and back"),
    "list": (lambda x: x * len(x.flatten().tolist()), "len() of a tensor"),
    "indices": (lambda x: x[: len(x[x[:, 0] > 9e9]) or None], "len() of a tensor"),
}


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_what_depends_on_values_stays_whole_with_the_line_and_a_way_out(name):
    function, meaning = UNTRACEABLE[name]
    model, x = not_on_values(function), torch.randn(64, 4)
    with pytest.warns(FxQuantWarning) as caught, torch.no_grad():
        prepared = fxq.prepare(model, x, capture="fx").calibrate([x], progress=False)
    (text,) = {str(warning.message) for warning in caught}
    line = function.__code__.co_firstlineno
    assert text.startswith("torch.fx cannot trace the submodule '1' (a Inner)\n")
    assert f"at:       {__file__}:{line}: " in text
    assert f"got:      {meaning}" in text
    assert 'leaf_modules=("1",) keeps it whole and in float, which was done' in text
    (row,) = prepared.coverage().float_rows
    assert f"{__file__}:{line}" in row.reason
    with torch.no_grad():
        expected, got = model(x), fxq.convert(prepared)(x)
    assert float(10 * torch.log10(expected.square().mean() / (got - expected).square().mean())) >= 25
    with pytest.raises(TracingError) as strict:
        fxq.prepare(model, x, strict=True, capture="fx")
    assert str(strict.value).splitlines()[:3] == text.splitlines()[:3]
