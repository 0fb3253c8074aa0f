"""A forward behind a decorator, with any arguments, is traced as it is called."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import fxquant as fxq


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
