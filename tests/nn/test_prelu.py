"""A PReLU with a slope for each channel, against the float one between the same grids."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from fxquant.errors import LoweringError
from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.nn.prelu import QuantizedPReLU
from fxquant.plan.spec import QParams, QScheme

SLOPE = torch.tensor([0.25, -0.5, 3.0])


def qparams(scale: float, zero_point: int, *, signed: bool = False, bits: int = 8) -> QParams:
    scheme = QScheme(bits=bits, signed=signed)
    return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


@pytest.mark.parametrize(
    ("x", "y"), [(qparams(0.1, 100), qparams(0.07, 60)), (qparams(0.1, -5, signed=True), qparams(0.2, 30))]
)
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 7), (2, 3, 4, 5), (2, 3, 2, 4, 5), (3,)])
def test_it_is_the_float_function_between_the_grids(x, y, shape) -> None:
    q = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    q = q.view(x.scheme.dtype)
    norm = nn.PReLU(3 if len(shape) > 1 else 1)
    slope = SLOPE if len(shape) > 1 else SLOPE[:1]
    with torch.no_grad():
        norm.weight.copy_(slope)
        real = norm(from_integers(q, x.scale, x.zero_point, x.scheme))
    module = QuantizedPReLU(slope, x, y)
    assert torch.equal(module(q), to_integers(real, y.scale, y.zero_point, y.scheme))
    assert torch.equal(module.reference(q), module(q))
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), module(q))


def test_slopes_must_be_finite() -> None:
    with pytest.raises(LoweringError) as error:
        QuantizedPReLU(torch.tensor([1.0, float("nan")]), qparams(0.1, 0), qparams(0.1, 0))
    assert str(error.value) == (
        "the slopes hold values that are not finite\n"
        "  got:      1 of 2 values are inf or NaN\n"
        "  expected: finite slopes"
    )


def test_printing() -> None:
    assert repr(QuantizedPReLU(SLOPE, qparams(0.1, 0), qparams(0.2, 3))) == (
        "QuantizedPReLU(num_parameters=3, y: uint8 scale=0.2 zero_point=3, x: uint8 scale=0.1 zero_point=0)"
    )
