"""Code that branches, loops and counts on shapes: traced as the example goes, guarded against other answers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.capture.trace_guards import require_answer
from fxquant.capture.tracing import trace
from fxquant.errors import InputError, TracingError

X = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


class Fn(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.function(self, x)


def traced(function, x: Tensor = X) -> tuple[nn.Module, GraphModule]:
    model = Fn(function).eval()
    return model, trace(model, example_args=(x,))


def guards(gm: GraphModule) -> list[object]:
    return [node.args[1] for node in gm.graph.nodes if node.target is require_answer]


def _padded(self, x):
    b, c, h, w = x.shape
    right, below = (4 - w % 4) % 4, (4 - h % 4) % 4
    x = F.pad(x, (0, right, 0, below))
    return x.view(b, c, (h + below) // 4, 4, -1, 4) if h * w > 20 else x


def _partly(self, x):
    half = x.size(-1) // 2
    return x[..., :half] + x.new_zeros((x.size(0), 1, 1, half)) + torch.zeros(x.shape[0], 1, 1, 1) * math.sqrt(half)


def _columns(self, x):
    out = []
    for i in range(x.shape[1]):
        out.append(self.linear(x[:, i]) * i)
    return torch.stack(out, 1)


CODE = {
    "branch": (lambda self, x: x * 2 if x.shape[-1] > 4 else x, [True], [X[:1], X[..., :5]], [X[..., :3]]),
    "chained branch": (lambda self, x: x + 1 if 2 < x.dim() < 5 else x, [True, True], [X[:1], X[0]], [X[0, 0, 0]]),
    "padding": (_padded, [True], [X[:1], torch.cat((X, X), 2)], [X[..., :3, :3]]),
    "arithmetic stays in the graph": (_partly, [], [X[:1], X[..., :4], torch.cat((X, X), -1)], []),
    "loop": (_columns, [4], [X[:1], X[:, :, :2]], [X[:, :3]]),
    "len": (lambda self, x: sum(x[i] for i in range(len(x))), [2], [X[..., :3]], [X[:1]]),
    "unpacking in a call": (lambda self, x: x.reshape(*x.shape[:2], -1), [2], [X[:1], X[..., :3]], []),
    "int": (lambda self, x: F.interpolate(x, size=int(x.size(-1) * 1.5)), [9.0], [X[:1]], [X[..., :4, :4]]),
    "round": (lambda self, x: x * round(x.size(-1) / 4), [], [X[:1], X[..., :2]], []),
    "divmod": (lambda self, x: x.flatten(1)[:, : divmod(x.size(-1), 4)[0] * 3], [], [X[:1], X[..., :5]], []),
    "shapes that must agree": (
        lambda self, x: x + x.flip(-1) if x.shape == x.flip(-1).shape else x,
        [True],
        [X[:1], X[..., :3]],
        [],
    ),
    "membership": (lambda self, x: x * 2 if 6 in x.shape else x, [True], [X[:1]], [X[..., :3, :3]]),
    "dtype": (lambda self, x: x * 2 if x.dtype == torch.float32 else x, [True], [X[:1]], [X.double()]),
    "what is the same for every input": (lambda self, x: x if x.is_nested or x.requires_grad else -x, [], [X[:1]], []),
    "attributes that tensors lack": (lambda self, x: x if hasattr(x, "nonesuch") else -x, [], [X[:1]], []),
    "what the tensor is": (
        lambda self, x: -x if isinstance(x, Tensor) and not isinstance(x, tuple) else x,
        [],
        [X],
        [],
    ),
    "is_tensor": (lambda self, x: -x if torch.is_tensor(x) else x, [], [X[:1]], []),
    "an assertion": (lambda self, x: _asserting(x), [True], [X[:1]], [X[0]]),
    "parts": (lambda self, x: sum(part.mean() for part in x.split(3, -1)), [2], [X[:1], X[..., :4]], [X[..., :2]]),
}


def _asserting(x):
    assert x.dim() == 4
    return -x


@pytest.mark.parametrize("name", CODE)
def test_code_that_asks_about_shapes(name):
    function, answers, same, other = CODE[name]
    model, gm = traced(function)
    assert guards(gm) == answers
    for x in (X, *same):
        assert torch.equal(gm(x), model(x))
    for x in other:
        other_in = "another dtype" if name == "dtype" else "other sizes"
        with pytest.raises(InputError, match=f"the model was prepared for inputs of {other_in}: on these"):
            gm(x)


def test_a_guard_names_the_users_line():
    _, gm = traced(lambda self, x: _asserting(x))
    with pytest.raises(InputError) as caught:
        gm(X[0])
    assert f"  at:       {__file__}:{_asserting.__code__.co_firstlineno + 1}: assert x.dim() == 4\n" in str(
        caught.value
    )


def test_each_answer_is_guarded_once():
    def twice(self, x):
        large = x.size(0) > 1
        return (x if large else -x) + (1 if large else 2)

    assert guards(traced(twice)[1]) == [True]


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: x if x.sum() > 0 else -x,
        lambda self, x: x if x.max().item() > 0.5 else -x,
        lambda self, x: x if x.nonzero().shape[0] > 3 else -x,
        lambda self, x: x if len(x[x > 0]) > 3 else -x,
        lambda self, x: x * float(x.sum()),
        lambda self, x: [row for row in x],  # noqa: C416  a loop over values
        lambda self, x: x.new_zeros(int(x.argmax())),
    ],
    ids=["sum", "item", "nonzero", "mask", "float", "rows", "int"],
)
def test_values_give_no_answer(function):
    with pytest.raises(TracingError):
        traced(function)


def test_values_that_a_function_of_the_example_gives_are_known():
    _, gm = traced(lambda self, x: (x.size(0), x.shape[1:], x.chunk(2), x.dtype))
    known = {node.name: node.meta["fxquant_value"] for node in gm.graph.nodes}
    assert known["size"] is int
    assert known["output"][1] is torch.Size
    assert [str(info) for info in known["chunk"]] == ["float32[1, 4, 6, 6]"] * 2


def test_plain_numbers_may_be_branched_on():
    class Scaled(nn.Module):
        def forward(self, x, times: int):
            for _ in range(times):
                x = x * 2
            return x

    gm = trace(Scaled(), example_args=(X, 3))
    assert torch.equal(gm(X, 3), X * 8)
    with pytest.raises(InputError):
        gm(X, 2)


def test_constants_made_of_sizes_follow_them():
    model, gm = traced(lambda self, x: x + torch.arange(x.size(-1)) + torch.ones((x.size(-1),), dtype=x.dtype))
    assert guards(gm) == []
    assert torch.equal(gm(X[..., :3]), model(X[..., :3]))


def test_keyword_arguments_that_are_passed_on():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, *args, **kwargs):
            extra = sum(value.mean() for name, value in kwargs.items() if name.startswith("m"))
            return self.inner(*args, **kwargs) + extra

    class Inner(nn.Module):
        def forward(self, x, mask=None, bias=None):
            return (x if mask is None else x * mask) + (0 if bias is None else bias)

    model = Outer()
    gm = trace(model, example_args=(X,), example_kwargs={"mask": X.sigmoid()})
    mask = X > -0.5
    assert torch.equal(gm(X, mask=mask.float()), model(X, mask=mask.float()))
    for wrong in ({}, {"bias": X}):
        with pytest.raises(InputError):
            gm(X, **wrong)


def test_items_of_inputs_are_fixed_where_code_branches_on_them():
    class Batch(nn.Module):
        def forward(self, batch, mode="plain"):
            x = batch["x"] if batch.get("mask") is None else batch["x"] * batch["mask"]
            x = -x if batch["options"]["negate"] else x
            return x if "bias" not in batch else x + batch["bias"]

    model, batch = Batch(), {"x": X, "mask": None, "options": {"negate": True}}
    gm = trace(model, example_args=(batch,))
    assert torch.equal(gm(batch | {"x": X[:1]}), -X[:1])
    with pytest.raises(InputError) as caught:
        gm(batch | {"options": {"negate": False}})
    assert str(caught.value).startswith("the argument \"batch['options']['negate']\" was fixed when the model was")
    for other in ({"mask": X}, {"bias": X}):
        with pytest.raises(InputError):
            gm(batch | other)


def _of_get(x, kw):
    mask = kw.get("mask")
    return x if mask is None else x * mask


def _of_in(x, kw):
    return x * kw["mask"] if "mask" in kw else x


def _of_items(x, kw):
    for name, value in kw.items():
        x = x * value if name == "mask" else x
    return x


def _of_truth(x, kw):
    return x * kw["mask"] if kw else x


def _of_pairs(x, kw):
    return x * 2 if len(kw) == 2 else x


def _of_list(x, kw):
    return x + sum(kw["xs"])


class Asking(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x, **kw):
        return self.linear(self.function(x, kw))


class HandingOn(Asking):
    def forward(self, *args, **kwargs):
        return self.linear(self.function(*args, **kwargs))


def _masked(x, mask=1.0):
    return x * mask


H = torch.linspace(-1, 1, 8).reshape(2, 4)
LEFT_OUT = "the argument 'mask' was given when the model was prepared, and is left out now"
GIVEN_NOW = "the argument 'mask' was left out when the model was prepared, and is given now"


ASKING = {"get": Asking(_of_get), "in": Asking(_of_in), "items": Asking(_of_items), "handed on": HandingOn(_masked)}


@pytest.mark.parametrize("name", ASKING)
def test_other_keyword_arguments_than_those_of_the_example_are_named(name):
    model, mask = ASKING[name].eval(), H.sigmoid()
    for example, call, said, got, expected, hint in (
        ({"mask": mask}, {}, LEFT_OUT, "no 'mask'", "float32[2, 4]", "give 'mask', or leave it out of"),
        ({}, {"mask": mask}, GIVEN_NOW, "float32[2, 4]", "no 'mask'", "leave 'mask' out, or give it in"),
    ):
        gm = trace(model, example_args=(H,), example_kwargs=example)
        assert torch.equal(gm(H, **example), model(H, **example))
        with pytest.raises(InputError) as caught:
            gm(H, **call)
        what, at, *rest = str(caught.value).splitlines()
        assert (what, at.startswith(f"  at:       {__file__}:")) == (said, True)
        assert rest == [
            f"  got:      {got}",
            f"  expected: {expected}",
            f"  hint:     {hint} the example inputs too, and prepare again",
        ]


def test_keyword_arguments_that_nothing_asks_for_may_differ():
    gm = trace(Asking(_of_get).eval(), example_args=(H,), example_kwargs={"mask": H})
    assert torch.equal(gm(H, mask=H, scale=2.0), gm(H, mask=H))


def test_a_batch_that_lacks_a_keyword_argument_names_it():
    prepared = fxq.prepare(HandingOn(_masked).eval(), H, example_kwargs={"mask": H})
    with pytest.raises(InputError, match=f"calibration batch 0: {LEFT_OUT}"):
        fxq.calibrate(prepared, [H], progress=False)


def test_a_file_names_them_too(tmp_path):
    prepared = fxq.prepare(Asking(_of_items).eval(), H, example_kwargs={"mask": H})
    int8 = fxq.convert(fxq.calibrate(prepared, [{"x": H, "mask": H}], progress=False))
    fxq.save(int8, tmp_path / "model.fxq")
    loaded = fxq.load(tmp_path / "model.fxq")
    assert torch.equal(loaded(H, mask=H), int8(H, mask=H))
    with pytest.raises(InputError, match=LEFT_OUT):
        loaded(H)
    with pytest.raises(InputError, match="the argument 'scale' was left out when the model was prepared, and is given"):
        loaded(H, mask=H, scale=2.0)


def test_the_number_of_arguments_and_of_items_is_no_size():
    for function, example, call, name, got, expected in (
        (_of_truth, {"mask": H}, {}, "**kw", "0", "at least 1"),
        (_of_truth, {}, {"mask": H}, "**kw", "1", "0"),
        (_of_pairs, {"a": H, "b": H}, {"a": H}, "**kw", "1", "2"),
        (_of_list, {"xs": [H, H]}, {"xs": [H] * 3}, "kw['xs']", "3", "2"),
    ):
        gm = trace(Asking(function).eval(), example_args=(H,), example_kwargs=example)
        with pytest.raises(InputError) as caught:
            gm(H, **call)
        what, _, *rest = str(caught.value).splitlines()
        assert what == f"another number of items is given in {name} than when the model was prepared"
        assert rest[:2] == [f"  got:      {got}", f"  expected: {expected}"]


def test_items_of_a_dict_are_spelled():
    class Net(nn.Module):
        def forward(self, x, batch):
            return x * batch["mask"] if "mask" in batch else x

    gm = trace(Net(), example_args=(H, {"mask": H}))
    with pytest.raises(InputError, match=r"the item batch\['mask'\] was given when .*, and is left out now"):
        gm(H, {})
    with pytest.raises(InputError, match=r"the item batch\['mask'\] was left out when .*, and is given now"):
        trace(Net(), example_args=(H, {}))(H, {"mask": H})


@pytest.mark.parametrize(
    ("function", "call", "other"),
    [
        (lambda net, x, n: x * 2 if n > 2 else x, {"n": 1}, "another value of an argument: with this one"),
        (
            lambda net, x, n: x * n if x.dtype == torch.float32 else x,
            {"x": H.double()},
            "inputs of another dtype: on these",
        ),
        (lambda net, x, n: x * n if x.is_floating_point() else x, {"x": H.long()}, "inputs of another dtype: on these"),
        (
            lambda net, x, n: x * n if x.device.type == "cpu" else x,
            {"x": H.to("meta")},
            "inputs on another device: on these",
        ),
        (lambda net, x, n: x * n if x.shape[0] > n - 3 else x, {"x": H[:0]}, "inputs of other sizes: on these"),
    ],
)
def test_what_an_answer_follows_from_is_named(function, call, other):
    class Net(nn.Module):
        def forward(self, x, n):
            return function(self, x, n)

    gm = trace(Net(), example_args=(H, 3))
    with pytest.raises(InputError, match=f"the model was prepared for {other} it would compute something else"):
        gm(**{"x": H, "n": 3, **call})
