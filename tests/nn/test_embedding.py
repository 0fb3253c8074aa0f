"""Look-ups in a quantized table against torch's own, in a table that was rounded to the grid."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fxquant.errors import InputError, LoweringError
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.nn import QuantizedEmbedding, QuantizedEmbeddingBag
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import QParams, QScheme

FLOAT_SUMS = 1e-6
"""torch adds the rows of a bag in an order of its own: float32 sums of a few numbers near 1, relative and absolute."""

FLOAT_QPARAMS = QScheme(signed=False, axis=0, float_qparams=True)
SCHEMES = (
    FLOAT_QPARAMS,
    QScheme(bits=4, signed=False, axis=0, float_qparams=True),
    QScheme(bits=3, signed=False, axis=-2, float_qparams=True),
    QScheme(symmetric=True, axis=0),
    QScheme(bits=4, symmetric=True, axis=0),
    QScheme(signed=False),
    QScheme(bits=4, symmetric=True),
)
INDICES = torch.tensor([[3, 0, 10], [10, 7, 0]])


def qparams_of(table: torch.Tensor, scheme: QScheme) -> QParams:
    observer = (MinMaxObserver if scheme.axis is None else PerChannelMinMaxObserver)(scheme=scheme)
    observer(table.detach())
    return observer.qparams()


def rounded(layer: nn.Module, qparams: QParams) -> nn.Module:
    twin = copy.deepcopy(layer)
    twin.weight.data = fake_quantize(layer.weight.detach(), qparams.scale, qparams.zero_point, qparams.scheme)
    return twin


def embedding() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(11, 7, padding_idx=0)


def bag(mode: str = "sum", **options) -> nn.EmbeddingBag:
    torch.manual_seed(0)
    return nn.EmbeddingBag(11, 7, mode=mode, **options)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_rows_are_those_of_the_rounded_table(scheme):
    layer = embedding()
    qparams = qparams_of(layer.weight, scheme)
    module = QuantizedEmbedding(layer, qparams)
    for indices in (INDICES, INDICES.int(), INDICES[0, 0], INDICES[:0]):
        assert torch.equal(module(indices), rounded(layer, qparams)(indices))
        assert torch.equal(module.reference(indices), module(indices))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("scheme", SCHEMES[:4], ids=str)
def test_bags_are_those_of_the_rounded_table(scheme, mode):
    layer = bag(mode, padding_idx=10)
    qparams = qparams_of(layer.weight, scheme)
    module, expected = QuantizedEmbeddingBag(layer, qparams), rounded(layer, qparams)
    for arguments in ((INDICES,), (INDICES.flatten(), torch.tensor([0, 2, 2]))):
        y = module(*arguments)
        torch.testing.assert_close(y, expected(*arguments).detach(), rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
        assert torch.equal(module.reference(*arguments), y)


def test_bags_with_weights_and_with_the_last_offset():
    layer = bag(include_last_offset=True)
    qparams = qparams_of(layer.weight, FLOAT_QPARAMS)
    module, expected = QuantizedEmbeddingBag(layer, qparams), rounded(layer, qparams)
    weights = torch.tensor([[0.5, -1.0, 2.0], [0.25, 3.0, 1.0]])
    for arguments in ((INDICES, None, weights), (INDICES.flatten(), torch.tensor([0, 1, 6]), weights.flatten())):
        y = module(*arguments)
        torch.testing.assert_close(y, expected(*arguments).detach(), rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
        assert torch.equal(module.reference(*arguments), y)


def test_the_table_shrinks():
    layer = nn.Embedding(100, 64)
    eight = QuantizedEmbedding(layer, qparams_of(layer.weight, SCHEMES[0]))
    four = QuantizedEmbedding(layer, qparams_of(layer.weight, SCHEMES[1]))
    assert (eight.weight.dtype, eight.weight.shape) == (torch.uint8, (100, 64))
    assert (four.weight.dtype, four.weight.shape) == (torch.uint8, (100, 32))
    assert list(four.state_dict()) == ["weight", "weight_scale", "weight_zero_point"]
    assert sum(v.untyped_storage().nbytes() for v in four.state_dict().values()) == 100 * (32 + 4 + 4)


def test_state_travels():
    layer = embedding()
    module = QuantizedEmbedding(layer, qparams_of(layer.weight, SCHEMES[1]))
    before = module(INDICES)
    fresh = QuantizedEmbedding(nn.Embedding(11, 7), qparams_of(torch.ones(11, 7), SCHEMES[1]))
    assert not torch.equal(fresh(INDICES), before)
    fresh.load_state_dict(module.state_dict())
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(INDICES), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_results_have_the_dtype_of_the_float_table(dtype):
    layer = embedding()
    qparams = qparams_of(layer.weight, FLOAT_QPARAMS)
    expected = QuantizedEmbedding(layer, qparams)(INDICES).to(dtype)
    cast = QuantizedEmbedding(layer, qparams).to(dtype)
    assert cast.weight_scale.dtype == torch.float32
    assert torch.equal(cast(INDICES), expected)
    made = QuantizedEmbedding(copy.deepcopy(layer).to(dtype), qparams)
    assert made(INDICES).dtype == dtype


def test_an_index_that_is_no_row():
    layer = embedding()
    with pytest.raises(RuntimeError, match="an index is out of range"):
        QuantizedEmbedding(layer, qparams_of(layer.weight, FLOAT_QPARAMS))(torch.tensor([11]))


@pytest.mark.parametrize("scheme", [QScheme(bits=12), QScheme(axis=1), QScheme(axis=0, group_size=7)], ids=str)
def test_other_grids_are_refused(scheme):
    layer = embedding()
    with pytest.raises(LoweringError) as error:
        QuantizedEmbedding(layer, qparams_of(layer.weight, scheme))
    assert str(error.value) == (
        "look-ups cannot take these qparams of a table\n"
        f"  got:      {scheme}\n"
        "  expected: at most 8 bits, one scale and zero point for each row (axis=0) or for all"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (INDICES, torch.tensor([0])),
            "offsets that do not fit\n  at:       bag\n  got:      some, with indices [2, 3]\n"
            "  expected: none: each row is a bag",
        ),
        (
            (INDICES[0],),
            "indices that do not fit\n  at:       bag\n  got:      [3], offsets None\n"
            "  expected: [bags, n], or [n] with offsets",
        ),
        (
            (INDICES, None, torch.ones(6)),
            "per_sample_weights that do not fit\n  at:       bag\n  got:      [6]\n  expected: [2, 3]",
        ),
    ],
)
def test_bags_that_are_none(arguments, text):
    layer = bag()
    module = QuantizedEmbeddingBag(layer, qparams_of(layer.weight, FLOAT_QPARAMS))
    module.unit = "bag"
    with pytest.raises(InputError) as error:
        module(*arguments)
    assert str(error.value) == f"a quantized embedding bag got {text}"


def test_printing():
    layer = bag("mean")
    layer.weight.data.copy_(torch.linspace(0, 1, 77).reshape(11, 7))
    module = QuantizedEmbeddingBag(layer, qparams_of(layer.weight, QScheme(bits=4, signed=False)))
    assert repr(module) == (
        "QuantizedEmbeddingBag(11, 7, weight: uint4 scale=0.06667 zero_point=0, y: float32, mode='mean')"
    )
