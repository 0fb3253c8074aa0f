"""``fxquant::dynamic_linear``: against the operators that measure, quantize and multiply one after the other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels.conv.packing import pack_weight
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.fake_quantize.moving_average_qparams import reference as measured_qparams
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.linear.dynamic_linear import (
    Choice,
    DynamicLinear,
    DynamicLinearByReference,
    dynamic_linear,
    reference,
)
from fxquant.kernels.linear.reference import linear_reference
from fxquant.kernels.quantize.quantize import reference as quantize_reference

SMALLEST = torch.finfo(torch.float32).smallest_normal
CHOICES: tuple[Choice, ...] = (
    (SMALLEST, 0, 255, None, torch.uint8),
    (SMALLEST, -128, 127, None, torch.int8),
    (SMALLEST, -127, 127, 0, torch.int8),
    (0.01, 0, 31, None, torch.uint8),
)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)
Layer = tuple[Tensor, Tensor, Tensor | None]


def layer(channels: int, depth: int, bias: bool = True) -> Layer:
    """Weight, its scale, and a bias."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randint(-128, 128, (channels, depth), dtype=torch.int8, generator=generator)
    return weight, torch.linspace(0.001, 0.1, channels), torch.linspace(-3, 3, channels) if bias else None


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(3).to(dtype)


def one_range(x: Tensor, choice: Choice, of: Layer) -> Tensor:
    """Measure the whole of x, quantize it, and multiply: three operators of their own."""
    (weight, scale, bias), (eps, low, high, middle, dtype) = of, choice
    if not x.numel():
        return torch.zeros(*x.shape[:-1], len(weight)) + (0 if bias is None else bias)
    unseen = torch.tensor(torch.inf)
    _, _, x_scale, zero_point, _ = measured_qparams(x, unseen, -unseen, None, 1.0, eps, low, high, middle)
    q = quantize_reference(x, x_scale, zero_point, low, high, dtype)
    epilogue = Epilogue(x_scale=x_scale.item(), weight_scale=scale, bias=bias, dtype=torch.float32)
    return linear_reference(q, int(zero_point), weight, NO_ZERO_POINT, epilogue)


def expected(x: Tensor, choice: Choice, of: Layer, per_token: bool) -> Tensor:
    if not per_token or not x.numel():
        return one_range(x, choice, of)
    rows = [one_range(row, choice, of) for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).view(*x.shape[:-1], len(of[0]))


def check(x: Tensor, choice: Choice, of: Layer, per_token: bool) -> None:
    """On every instruction set, and by the reference of the operator and of the layer."""
    want, made = expected(x, choice, of, per_token), DynamicLinear(*of, choice, per_token)
    assert torch.equal(made.reference(x), want)
    weight, scale, bias = of
    by_reference = DynamicLinearByReference(weight, NO_ZERO_POINT, scale, bias, choice, per_token)
    assert torch.equal(by_reference(x), want)
    assert torch.equal(by_reference.reference(x), want)
    for isa in available_isas():
        with use_isa(isa):
            found = made(x)
        assert torch.equal(found, want), isa
        assert found.is_contiguous()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(0, 7), max_size=3),
    depth=st.integers(0, 150),
    channels=st.integers(0, 130),
    dtype=st.sampled_from(FLOATS),
    choice=st.sampled_from(CHOICES),
    bias=st.booleans(),
    per_token=st.booleans(),
    odd=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from((math.nan, math.inf, -math.inf, 0.0, 3e38))), max_size=2
    ),
    strided=st.sampled_from(("", "transposed", "every second", "expanded", "behind another")),
)
def test_any_input_on_every_instruction_set(
    rows: list[int], depth: int, channels: int, dtype: torch.dtype, choice: Choice, bias: bool, per_token: bool,
    odd: list[tuple[int, float]], strided: str,
) -> None:  # fmt: skip
    x = floats(*rows, depth, dtype=dtype)
    for at, value in odd if x.numel() else []:
        x.view(-1)[at % x.numel()] = value
    if strided == "transposed":
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    elif strided == "every second":
        x = x.repeat_interleave(2, -1)[..., ::2]
    elif strided == "expanded":
        x = x[:1].expand(x.shape)
    elif strided == "behind another":
        x = torch.cat([x, x], -1)[..., depth:]
    check(x, choice, layer(channels, depth, bias), per_token)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_many_values(device: str, assert_same, dtype: torch.dtype, per_token: bool) -> None:
    """So many that several threads measure and quantize them."""
    of = layer(33, 70)
    for odd in ((), (math.nan, math.inf)):
        x = floats(1100, 70, dtype=dtype)
        x.view(-1)[torch.arange(len(odd)) * 50000 + 3] = torch.tensor(odd, dtype=dtype)
        made = DynamicLinear(*(None if each is None else each.to(device) for each in of), CHOICES[0], per_token)
        found = made(x.to(device)).cpu()
        assert_same(found, made.reference(x.to(device)).cpu())
        if not per_token:
            assert_same(found, one_range(x, CHOICES[0], of))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: f"{choice[1]} to {choice[2]}")
def test_at_every_place(vnni_device: str, assert_same, choice: Choice, per_token: bool) -> None:
    of = layer(70, 133)
    there: Any = [each if each is None else each.to(vnni_device) for each in of]
    for x in (
        floats(7, 133),
        floats(133),
        floats(0, 133),
        floats(2, 3, 133).fill_(torch.nan),
        floats(1, 5, 133).mT.contiguous().mT,
    ):
        made = DynamicLinear(*there, choice, per_token)
        assert_same(made(x.to(vnni_device)).cpu(), expected(x, choice, of, per_token))


@pytest.mark.parametrize(
    ("limits", "activation"),
    [
        ((0.0, math.inf), torch.relu),
        ((0.0, 6.0), torch.nn.functional.relu6),
        ((-math.inf, 0.5), lambda y: y.clamp(max=0.5)),
    ],
)
def test_limits_are_those_of_an_activation(vnni_device: str, assert_same, limits, activation) -> None:
    weight, scale, bias = layer(70, 40)
    assert bias is not None
    bias[3] = torch.nan  # what a bias can be here, though not in a layer: NaN passes an activation
    for per_token in (False, True):
        there = [each.to(vnni_device) for each in (weight, scale, bias)]
        plain, limited = (DynamicLinear(*there, CHOICES[0], per_token, *rest) for rest in ((), (limits,)))
        x = floats(5, 40).to(vnni_device)
        want = activation(plain(x))
        assert int((want != plain(x)).sum()) > 5
        torch.testing.assert_close(limited(x), want, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(limited.reference(x), want, rtol=0, atol=0, equal_nan=True)


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "x": torch.zeros(3, 4), "per_token": False, "eps": 1e-30, "quant_min": 0, "quant_max": 255, "middle": None,
        "dtype": torch.uint8, "weight": pack_weight(torch.zeros((2, 4), dtype=torch.int8)),
        "zero_point_correction": torch.zeros(2, dtype=torch.int32), "weight_sums": torch.zeros(2, dtype=torch.int32),
        "scale": torch.ones(2), "bias": torch.zeros(2), "low": -math.inf, "high": math.inf,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(3, 4, dtype=torch.uint8)}, "x has the wrong dtype", "torch.uint8",
         "float32, float64, float16 or bfloat16"),
        ({"x": torch.tensor(1.0)}, "x has no dimension", "[]", "[..., columns]"),
        ({"dtype": torch.int16}, "dtype has the wrong dtype", "torch.int16", "uint8 or int8"),
        ({"middle": 300}, "a zero point lies outside [quant_min, quant_max]", "300", "0 to 255"),
        ({"eps": math.inf}, "eps is out of range", "inf", "a finite float32"),
        ({"weight_sums": torch.zeros(3, dtype=torch.int32)}, "weight_sums has the wrong shape", "[3]", "[2]"),
        ({"bias": torch.zeros(2, dtype=torch.float64)}, "bias has the wrong dtype", "torch.float64", "float32"),
        ({"x": torch.zeros(3, 5)}, "weight has the wrong shape", "[1, 16, 4]", "[2, 16, 4], as pack_weight gives it"),
        ({"low": 1.0, "high": 0.0}, "low and high are no limits", "[1.000000, 0.000000]", "low <= high"),
    ],
)  # fmt: skip
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    for run in (dynamic_linear, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments(**changes))
        assert_message(error.value, f"fxquant::dynamic_linear: {what}", got, expected)


@pytest.mark.parametrize("per_token", [False, True])
def test_torch_knows_it(per_token: bool) -> None:
    made = DynamicLinear(*layer(5, 7), CHOICES[0], per_token)
    for shape in ((3, 7), (0, 7), (2, 3, 7)):
        torch.library.opcheck(torch.ops.fxquant.dynamic_linear.default, (torch.randn(shape), *made._arguments))
    compiled = torch.compile(lambda x: made(x) + 1, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 7)
    assert torch.equal(compiled(x), made(x) + 1)
