"""Transformers as people write them: a small BERT, torch's own encoder, a window attention that is wrapped."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

import fxquant as fxq
from fxquant.errors import InputError

CLOSE = 1e-5
"""Share of the largest value: attention that is taken apart sums in another order."""


class SelfAttention(nn.Module):
    """With heads split by view, and a mask of large negative numbers, as in BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.heads, self.size = heads, width // heads

    def split(self, x: Tensor) -> Tensor:
        return x.view((*x.size()[:-1], self.heads, self.size)).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.size) + mask
        context = torch.matmul(F.softmax(scores, dim=-1), value).permute(0, 2, 1, 3).contiguous()
        context = context.view((*context.size()[:-2], -1))
        return self.norm(self.dense(context) + x)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.up, self.down, self.norm = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.norm(self.down(F.gelu(self.up(x))) + x)


class Bert(nn.Module):
    """Token and position embeddings, optional arguments, a check of the length, a pooled output in a dict."""

    def __init__(self, width: int = 32, heads: int = 4, longest: int = 16) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, width), nn.Embedding(longest, width)
        self.register_buffer("ids", torch.arange(longest)[None], persistent=False)
        self.norm, self.longest = nn.LayerNorm(width), longest
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(2))
        self.pooler = nn.Linear(width, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        batch, length = input_ids.shape
        if length > self.longest:
            raise ValueError(f"{length} tokens are too many")
        if attention_mask is None:
            attention_mask = torch.ones((batch, length), device=input_ids.device)
        mask = (1.0 - attention_mask[:, None, None, :].to(self.norm.weight.dtype)) * torch.finfo(torch.float32).min
        x = self.norm(self.words(input_ids) + self.positions(self.ids[:, :length]))
        for layer in self.layers:
            x = layer(x, mask)
        return {"hidden": x, "pooled": torch.tanh(self.pooler(x[:, 0]))}


IDS = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(9) < torch.tensor([[9], [4], [7], [9]])).long()


@pytest.mark.parametrize("given", [{"input_ids": IDS}, {"input_ids": IDS, "attention_mask": MASK}], ids=["", "masked"])
def test_a_small_bert(given):
    model = Bert().eval()
    prepared = fxq.prepare(model, (), example_kwargs=given).calibrate([given], progress=False)
    linears = [row.fate for row in prepared.coverage() if row.operator in ("linear", "linear_act")]
    assert linears == ["int8"] * 13
    shorter = {name: value[:2, :5] for name, value in given.items()}
    int8 = fxq.convert(prepared)
    assert set(prepared.state_dict()) == set(fxq.prepare(model, (), example_kwargs=given).state_dict())
    with torch.no_grad():
        for batch in (given, shorter):
            expected = model(**batch)
            assert torch.equal(prepared(**batch)["hidden"], expected["hidden"])
            for name, value in int8(**batch).items():
                assert sqnr(expected[name], value) >= 20
    with pytest.raises(InputError, match="the model was prepared for inputs of other sizes"):
        int8(**{name: value.repeat(1, 2) for name, value in given.items()})


def sqnr(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


def window() -> nn.Module:
    return SwinTransformer([2, 2], 16, [2, 2], [1, 2], window_size=[3, 3], num_classes=8)


def patches() -> nn.Module:
    model = VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=8)
    nn.init.normal_(model.heads.head.weight, std=0.1)
    nn.init.normal_(model.conv_proj.weight, std=0.1)
    return model


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.Flatten(2), nn.Linear(1024, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 8))


@pytest.mark.parametrize(("make", "linears"), [(window, 18), (patches, 13), (encoder, 14)])
def test_every_linear_layer_becomes_int8(make, linears):
    model = make().eval()
    x = torch.randn(2, 3, 32, 32)
    prepared = fxq.prepare(model, x).calibrate([x], progress=False)
    fates = [row.fate for row in prepared.coverage() if row.operator in ("linear", "linear_act")]
    assert fates == ["int8"] * linears
    assert prepared.coverage().int8_macs >= 0.9
    with torch.no_grad():
        expected, int8 = model(x), fxq.convert(prepared)
        assert float((prepared(x) - expected).abs().max() / expected.abs().max()) < CLOSE
        assert sqnr(expected, int8(x)) >= 15
        assert int8(torch.cat((x, x))).shape == (4, *expected.shape[1:])
