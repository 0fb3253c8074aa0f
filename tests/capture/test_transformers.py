"""The transformer layers of torch.nn are looked into, and give what they give in evaluation, shortcuts included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.capture.tracing import trace
from fxquant.capture.transformers import TRANSFORMERS
from fxquant.errors import InputError

CLOSE = 1e-5
"""Absolute difference of normalized values: torch's shortcut sums in another order."""
WIDTH = 16
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
LAST = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
AMID = torch.tensor([[False] * 5, [False, True, False, False, True]])


def encoder(layers: int = 2, **options) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(WIDTH), enable_nested_tensor=not options)


def decoder() -> nn.TransformerDecoder:
    torch.manual_seed(0)
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 4, 32, batch_first=True, norm_first=True), 2)


def whole() -> nn.Transformer:
    torch.manual_seed(0)
    return nn.Transformer(WIDTH, 4, 1, 1, 32, batch_first=True)


X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
MEMORY = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1))

MODELS = {
    "layer": (lambda: encoder().layers[0], (X,), {}),
    "encoder": (encoder, (X,), {}),
    "gelu, norm first": (lambda: encoder(activation="gelu", norm_first=True), (X,), {}),
    "causal": (encoder, (X,), {"mask": CAUSAL}),
    "causal, and said to be": (encoder, (X,), {"mask": CAUSAL, "is_causal": True}),
    "padding at the end": (encoder, (X,), {"src_key_padding_mask": LAST}),
    "padding amid": (encoder, (X,), {"src_key_padding_mask": AMID}),
    "padding that is added": (encoder, (X,), {"src_key_padding_mask": torch.zeros(2, 5).masked_fill(LAST, -1e9)}),
    "decoder": (decoder, (X, MEMORY), {}),
    "decoder, causal": (decoder, (X, MEMORY), {"tgt_mask": CAUSAL}),
    "decoder, padding": (decoder, (X, MEMORY), {"tgt_key_padding_mask": LAST}),
    "transformer": (whole, (MEMORY, X), {"tgt_mask": CAUSAL}),
}


class Inside(nn.Module):
    """Not the model itself."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        return self.part(*args, **kwargs) * 1


def called(gm: GraphModule) -> set[type]:
    return {type(gm.get_submodule(node.target)) for node in gm.graph.nodes if node.op == "call_module"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_evaluation(name):
    make, args, kwargs = MODELS[name]
    model = make().eval()
    gm = trace(model, example_args=args, example_kwargs=kwargs)
    assert called(gm).isdisjoint(TRANSFORMERS)
    assert nn.Linear in called(gm)
    with torch.no_grad():
        torch.testing.assert_close(gm(*args, **kwargs), model(*args, **kwargs), atol=CLOSE, rtol=0)
        if not kwargs:
            other = tuple(torch.cat((x, x), 1)[:1] for x in args)
            torch.testing.assert_close(gm(*other), model(*other), atol=CLOSE, rtol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_whether_padding_comes_last_is_found_out_anew():
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.encoder(x, src_key_padding_mask=padding).mean(1)

    model = Pooled().eval()
    gm = trace(model, example_args=(X, LAST))
    with torch.no_grad():
        for padding in (LAST, AMID, ~LAST & False):
            torch.testing.assert_close(gm(X, padding), model(X, padding), atol=CLOSE, rtol=0)


def test_one_sequence_is_not_several():
    gm = trace(encoder().eval(), example_args=(X,))
    with pytest.raises(InputError, match="the model was prepared for inputs of other sizes"):
        gm(X[0])


def test_the_classes_are_put_back():
    before = [kind.forward for kind in TRANSFORMERS]
    model = encoder()
    trace(model.eval(), example_args=(X,))
    assert [kind.forward for kind in TRANSFORMERS] == before
    assert model.use_nested_tensor


def test_kept_whole_on_request():
    gm = trace(Inside(encoder()).eval(), example_args=(X,), leaf_modules=(nn.TransformerEncoder,))
    assert called(gm) == {nn.TransformerEncoder}
