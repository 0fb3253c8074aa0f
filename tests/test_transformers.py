"""Hugging Face's models are prepared with no edit, whatever torch.fx makes of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxquant as fxq
from fxquant.measure.noise import sqnr

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = torch.randint(60, (2, 6), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

Case = Callable[[Any], tuple[Any, tuple[Any, ...], dict[str, Any]]]


def bert(t: Any) -> Any:
    config = t.BertConfig(**SIZES, vocab_size=64, max_position_embeddings=16)
    return t.BertModel(config), (), {"input_ids": TOKENS, "attention_mask": torch.ones(2, 6, dtype=torch.int64)}


def distilbert(t: Any) -> Any:
    config = t.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=64, max_position_embeddings=16)
    return t.DistilBertForSequenceClassification(config), (), {"input_ids": TOKENS}


def vit(t: Any) -> Any:
    return t.ViTForImageClassification(t.ViTConfig(**SIZES, image_size=32, patch_size=8)), (IMAGES,), {}


def whisper(t: Any) -> Any:
    config = t.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        max_source_positions=16,
        num_mel_bins=8,
    )
    encoder = importlib.import_module("transformers.models.whisper.modeling_whisper").WhisperEncoder
    return encoder(config), (torch.randn(2, 8, 32),), {}


def llama(t: Any) -> Any:
    config = t.LlamaConfig(**SIZES, vocab_size=64, num_key_value_heads=2, max_position_embeddings=16, use_cache=False)
    return t.LlamaForCausalLM(config), (TOKENS,), {}


CASES: dict[str, Case] = {each.__name__: each for each in (bert, distilbert, vit, whisper, llama)}


@pytest.mark.filterwarnings("ignore")  # of the other package
@pytest.mark.parametrize("capture", ["auto", "export"])
@pytest.mark.parametrize("name", CASES)
def test_a_model_is_quantized_with_no_edit(name: str, capture: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = CASES[name](importlib.import_module("transformers"))
    model.eval()
    prepared = fxq.prepare(model, args, example_kwargs=kwargs, capture=capture)
    assert prepared.coverage().int8_macs >= 0.99
    with torch.no_grad():
        expected, got = model(*args, **kwargs), prepared(*args, **kwargs)
        int8 = prepared.convert()(*args, **kwargs)
    assert list(expected.keys()) == list(got.keys()) == list(int8.keys())
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-5)
        assert sqnr(value, int8[key]) > 15
