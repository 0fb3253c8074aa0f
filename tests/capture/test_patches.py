"""Functions that ``torch.fx.wrap`` names: looked into where that works, kept whole with a reason where it does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils.rnn import pad_packed_sequence

from fxquant.capture.leaf_modules import TRANSFORMERS
from fxquant.capture.tracing import trace
from fxquant.errors import InputError, TracingError
from fxquant.graph.query import reason_of

X = torch.linspace(-1, 1, 2 * 5 * 4).reshape(2, 5, 4)


def scaled_product(x: Tensor, weight: Tensor, window: int) -> Tensor:
    """Pads, assigns to a part, and branches on a size."""
    batch, length, _ = x.shape
    x = F.pad(x, (0, 0, 0, (window - length % window) % window))
    mask = x.new_zeros((x.shape[1], 1))
    mask[-window:] = 1
    if length > window:
        x = x + mask
    return helper(F.linear(x, weight)).view(batch, -1, 4)


def helper(x: Tensor) -> Tensor:
    return x * 2


def depends(x: Tensor, limit: float) -> Tensor:
    y = x * 2
    y += 1
    return y if x.max() > limit else x


def kind(x: Tensor) -> str:
    return "tensor" if isinstance(x, Tensor) else "else"


for _name in ("scaled_product", "helper", "depends"):
    torch.fx.wrap(_name)


class Net(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.body, self.linear = body, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def test_a_wrapped_function_is_looked_into():
    model = Net(lambda self, x: scaled_product(x, self.linear.weight, window=3)).eval()
    gm = trace(model, example_args=(X,))
    targets = [node.target for node in gm.graph.nodes]
    assert scaled_product not in targets
    assert helper not in targets
    assert F.linear in targets
    for x in (X, X[:1], torch.cat((X, X), 1)):
        assert torch.equal(gm(x), model(x))
    assert not any(reason_of(node) for node in gm.graph.nodes)


def test_one_that_cannot_be_traced_stays_whole_and_leaves_nothing_behind():
    model = Net(lambda self, x: depends(self.linear(x), 0.5) + self.linear.weight.sum()).eval()
    gm = trace(model, example_args=(X,))
    called = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert [node.target.__name__ for node in called] == ["depends", "add"]
    line = depends.__code__.co_firstlineno + 3
    assert reason_of(called[0]) == (
        "torch.fx cannot trace it: a branch (if, while, and, or, assert) on the value of a tensor, "
        f"{__file__}:{line}: return y if x.max() > limit else x"
    )
    for x in (X, X * 9, -X * 9):
        assert torch.equal(gm(x), model(x))


def test_parameters_first_read_inside_a_failed_attempt_are_still_there():
    model = Net(lambda self, x: depends(F.linear(x, self.linear.weight), 0.0) * self.linear.weight[0])
    gm = trace(model, example_args=(X,))
    assert torch.equal(gm(X), model(X))


def test_everything_is_put_back():
    before = dict(globals())
    trace(Net(lambda self, x: helper(x)), example_args=(X,))
    assert {name: value for name, value in globals().items() if before.get(name) is not value} == {}
    assert "isinstance" not in vars(F)
    assert not hasattr(torch.zeros, "__wrapped__")
    with pytest.raises(TracingError, match="cannot trace"):
        trace(Net(lambda self, x: x if x.sum() > 0 else -x), example_args=(X,))
    assert globals().keys() == before.keys()


def test_isinstance_sees_what_a_proxy_stands_for():
    model = Net(lambda self, x: {kind(x): x, kind(x.shape): x + 1})
    assert list(trace(model, example_args=(X,))(X)) == ["tensor", "else"]


class Line(nn.Module):
    """A forward of one line behind a layer."""

    def __init__(self, body) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(8, 8), body

    def forward(self, x):
        return self.body(self.linear(x), x)


TABLE = {8: 2.0, 4: 3.0, (2, 8): 5.0, torch.float32: 7.0, torch.Size([2, 8]): 11.0}
ROWS = torch.rand(2, 8)


@pytest.mark.parametrize(
    "body",
    [
        lambda y, x: y * torch.tensor(x.shape[1]),
        lambda y, x: y * torch.tensor([x.shape[0], x.size(1)]).sum(),
        lambda y, x: y * torch.as_tensor(x.shape[1], dtype=torch.float32),
        lambda y, x: y * torch.scalar_tensor(x.shape[1]),
        lambda y, x: y.masked_fill(x > 0.5, torch.finfo(x.dtype).min),
        lambda y, x: y + torch.finfo(y.dtype).eps,
        lambda y, x: y + torch.iinfo((x > 0).int().dtype).max,
        lambda y, x: y * TABLE[x.shape[1]],
        lambda y, x: y * TABLE.get(x.shape[1], 1.0),
        lambda y, x: y * TABLE.get(x.shape[0], 13.0),
        lambda y, x: y * TABLE[x.shape[0], x.shape[1]],
        lambda y, x: y * TABLE[x.shape],
        lambda y, x: y * TABLE[x.dtype],
        lambda y, x: y * (2.0 if x.shape[1] in TABLE else 1.0),
        lambda y, x: y * {"8": 2.0}.get(str(x.shape[1]), 1.0),
        lambda y, x: y * (2.0 if x.shape[1] in {4, 8} else 1.0),
    ],
)
def test_sizes_and_dtypes_are_what_they_are(body):
    model = Line(body).eval()
    assert torch.equal(trace(model, example_args=(ROWS,))(ROWS), model(ROWS))


def test_a_table_that_was_looked_into_by_a_size_is_guarded():
    gm = trace(Line(lambda y, x: y * TABLE.get(x.shape[0], 13.0)).eval(), example_args=(ROWS,))
    with pytest.raises(InputError, match="prepared for inputs of other sizes"):
        gm(torch.rand(4, 8))


def test_a_size_in_a_message_is_not_guarded():
    def checked(y, x):
        torch._assert(x.shape[0] < 100, f"too many: {x.shape[0]}")
        return y

    gm = trace(Line(checked).eval(), example_args=(ROWS,))
    assert gm(torch.rand(4, 8)).shape == (4, 8)


@pytest.mark.parametrize(
    "body",
    [
        lambda y, x: y + torch.rand(8),
        lambda y, x: y + torch.randn(2, 8),
        lambda y, x: y + torch.randn(x.shape),
        lambda y, x: y + torch.empty(8).normal_(),
        lambda y, x: y + torch.zeros(8).uniform_(1, 2),
        lambda y, x: y[:, torch.randperm(8)],
        lambda y, x: y + torch.randint(0, 9, (8,)),
        lambda y, x: y * torch.bernoulli(torch.full((8,), 0.5)),
        lambda y, x: y + torch.randn_like(torch.zeros(8)),
        lambda y, x: y + torch.normal(0.0, 1.0, (8,)),
    ],
)
def test_random_numbers_are_drawn_in_every_call(body):
    model = Line(body).eval()
    gm = trace(model, example_args=(ROWS,))
    results = []
    for each in (model, gm):
        torch.manual_seed(3)
        results.append([each(ROWS), each(ROWS)])
    assert all(map(torch.equal, *results))
    assert not torch.equal(*results[1])
    assert "normal_" not in vars(Tensor)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 8)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = self.lstm(packed)
        return self.linear(pad_packed_sequence(y, batch_first=True)[0])


def test_packed_sequences():
    model, x = Packed().eval(), torch.rand(2, 4, 8)
    gm = trace(model, example_args=(x, torch.tensor([4, 2])))
    for lengths in (torch.tensor([4, 2]), torch.tensor([1, 3])):
        assert torch.equal(gm(x, lengths), model(x, lengths))


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


SEQUENCES = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
MEMORY = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1))

MODELS = {
    "layer": (lambda: encoder().layers[0], (SEQUENCES,), {}),
    "encoder": (encoder, (SEQUENCES,), {}),
    "gelu, norm first": (lambda: encoder(activation="gelu", norm_first=True), (SEQUENCES,), {}),
    "causal": (encoder, (SEQUENCES,), {"mask": CAUSAL}),
    "causal, and said to be": (encoder, (SEQUENCES,), {"mask": CAUSAL, "is_causal": True}),
    "padding at the end": (encoder, (SEQUENCES,), {"src_key_padding_mask": LAST}),
    "padding amid": (encoder, (SEQUENCES,), {"src_key_padding_mask": AMID}),
    "padding that is added": (
        encoder,
        (SEQUENCES,),
        {"src_key_padding_mask": torch.zeros(2, 5).masked_fill(LAST, -1e9)},
    ),
    "decoder": (decoder, (SEQUENCES, MEMORY), {}),
    "decoder, causal": (decoder, (SEQUENCES, MEMORY), {"tgt_mask": CAUSAL}),
    "decoder, padding": (decoder, (SEQUENCES, MEMORY), {"tgt_key_padding_mask": LAST}),
    "transformer": (whole, (MEMORY, SEQUENCES), {"tgt_mask": CAUSAL}),
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
    gm = trace(model, example_args=(SEQUENCES, LAST))
    with torch.no_grad():
        for padding in (LAST, AMID, ~LAST & False):
            torch.testing.assert_close(gm(SEQUENCES, padding), model(SEQUENCES, padding), atol=CLOSE, rtol=0)


def test_one_sequence_is_not_several():
    gm = trace(encoder().eval(), example_args=(SEQUENCES,))
    with pytest.raises(InputError, match="the model was prepared for inputs of other sizes"):
        gm(SEQUENCES[0])


def test_the_classes_are_put_back():
    before = [kind.forward for kind in TRANSFORMERS]
    model = encoder()
    trace(model.eval(), example_args=(SEQUENCES,))
    assert [kind.forward for kind in TRANSFORMERS] == before
    assert model.use_nested_tensor


def test_kept_whole_on_request():
    gm = trace(Inside(encoder()).eval(), example_args=(SEQUENCES,), leaf_modules=(nn.TransformerEncoder,))
    assert called(gm) == {nn.TransformerEncoder}


def test_names_have_their_meaning_while_operators_run():
    """What imports something late, as functions of torch do that import dynamo, would keep a patched name for good."""

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((torch.finfo, torch.iinfo, torch.zeros, torch.rand, torch.is_tensor, F.dropout))
            return x

    seen: list[tuple[object, ...]] = []
    expected = torch.finfo, torch.iinfo, torch.zeros, torch.rand, torch.is_tensor, F.dropout

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.looks, self.linear = Looks(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.looks(x)).clamp(torch.finfo(x.dtype).min)

    gm = trace(Model().eval(), example_args=(X,), leaf_modules=["looks"])
    assert seen
    assert all(one is other for names in seen for one, other in zip(names, expected, strict=True))
    assert torch.equal(gm(X), gm.linear(X))
