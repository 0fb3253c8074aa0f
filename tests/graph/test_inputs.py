from __future__ import annotations

import functools
import operator

import pytest
import torch
from torch import nn
from torch.fx import Graph

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.graph.inputs import bind, bind_example, describe_call, describe_value, is_given, spelled


class Net(nn.Module):
    def forward(self, x, scale=2.0, *rest, flag=False, **more):
        return x


def test_bind_fills_in_defaults():
    x = torch.zeros(1)
    assert bind(Net(), (x,), {"flag": True, "other": 3}, "the inputs") == {
        "x": x,
        "scale": 2.0,
        "rest": (),
        "flag": True,
        "more": {"other": 3},
    }


def test_bind_shows_what_it_got_and_the_signature():
    with pytest.raises(InputError) as caught:
        bind(nn.ReLU(), (torch.zeros(2, 3), torch.ones(1, dtype=torch.int64)), {"k": 1}, "batch 3")
    assert str(caught.value) == (
        "batch 3 do not fit the model's forward: too many positional arguments\n"
        "  got:      (float32[2, 3], int64[1], k=1)\n"
        "  expected: ReLU.forward(input: torch.Tensor) -> torch.Tensor"
    ).replace("torch.Tensor", _annotation())


def _annotation() -> str:
    """Whether torch annotates with the class or with a string depends on its version."""
    text = str(nn.ReLU.forward.__annotations__["input"])
    return "'Tensor'" if text == "Tensor" else "torch.Tensor"


def test_example_inputs_must_be_a_tuple():
    with pytest.raises(InputError, match=r"the example inputs are no tuple\n  got:      \[float32\[1\]\]"):
        bind_example(Net(), [torch.zeros(1)], {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "float32[2, 3]"),
        (torch.Size([2, 3]), "(2, 3)"),
        ([1, 2, 3, 4, 5], "[1, 2, 3, 4, …]"),
        ((torch.zeros(1),), "(float32[1],)"),
        ({"a": None, "b": "x"}, "{a: None, b: 'x'}"),
        ("y" * 100, "str of length 102"),
        (object(), "an object"),
    ],
    ids=range(7),
)
def test_describe_value(value, text):
    assert describe_value(value) == text


def test_describe_call():
    assert describe_call((1,), {"x": torch.zeros(1)}) == "(1, x=float32[1])"


def test_items_of_inputs_are_given_and_read_as_the_user_wrote_them():
    graph = Graph()
    batch = graph.placeholder("*batch")
    item = graph.call_function(operator.getitem, (graph.call_function(operator.getitem, (batch, 0)), "mask"))
    made = graph.call_function(torch.neg, (item,))
    assert [is_given(node) for node in (batch, item, made)] == [True, True, False]
    assert [spelled(node) for node in (batch, item, made)] == ["batch", "batch[0]['mask']", "neg"]


def unpacking(forward):
    """As language models have it: takes an argument of its own out of the keywords."""

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        as_tuple = kwargs.pop("return_tuple", False)
        result = forward(self, *args, **kwargs)
        return tuple(result.values()) if as_tuple else result

    return wrapper


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.query, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11)

    @unpacking
    def forward(self, input_ids=None, attention_mask=None, use_cache: bool | None = None, *, scale=1.0, **kwargs):
        x = self.query(self.table(input_ids))
        scores = x @ x.transpose(-1, -2)
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None]) * torch.finfo(scores.dtype).min
        x = torch.softmax(scores, -1) @ x * scale
        if kwargs.get("labels") is not None:
            x = x + kwargs["labels"][..., None]
        return {"logits": self.head(x)}


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
MASK = (IDS > 0).float()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((IDS,), {}),
        ((), {"input_ids": IDS}),
        ((IDS, MASK), {}),
        ((), {"input_ids": IDS, "attention_mask": MASK}),
        ((IDS,), {"labels": MASK, "use_cache": True}),
        ((IDS,), {"scale": 2.0}),
    ],
    ids=["one", "by name", "two", "both by name", "others", "keyword only"],
)
def test_a_decorated_forward(args, kwargs):
    model = Language().eval()
    prepared = fxq.prepare(model, args, example_kwargs=kwargs)
    expected = model(*args, **kwargs)["logits"]
    assert torch.equal(prepared.observe(*args, **kwargs)["logits"], expected)
    got = fxq.convert(prepared)(*args, **kwargs)["logits"]
    assert float((got - expected).detach().abs().max()) < 0.1 * float(expected.detach().abs().max())


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @unpacking
    def forward(self, x, *others):
        for other in others:
            x = x + other
        return {"y": self.linear(x)}


def test_a_decorated_forward_of_several_inputs():
    model, x = Several().eval(), torch.rand(2, 4)
    for args in ((x,), (x, x), (x, x, x + 1)):
        assert torch.equal(fxq.prepare(model, args)(*args)["y"], model(*args)["y"])
