"""``fxquant::weight_only_linear``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels import weight_only_linear
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.linear.grouped_weight import GroupedWeight, dequantized
from fxquant.kernels.linear.weight_only_linear import reference

FLOAT_SUMS = 1e-5
"""Of the largest magnitude that a sum can have: how far float32 sums may be from exact ones."""


def call(
    rows: tuple[int, ...], channels: int, in_features: int, groups: int = 1, bits: int = 4, *, shifted: bool = False
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(in_features)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    weight = torch.randint(low, high, (channels, in_features), dtype=torch.int8, generator=generator)
    points = torch.randint(low, high, (channels, groups), dtype=torch.int32, generator=generator)
    scale = torch.rand(channels, groups, generator=generator) + 0.01
    packed = GroupedWeight.of(weight, scale, points if shifted else torch.zeros_like(points), bits)
    return {
        "x": torch.randn(*rows, in_features, generator=generator),
        "weight": packed.values,
        "scale": packed.scale,
        "zero_point": packed.zero_point,
        "bias": torch.randn(channels, generator=generator),
        "bits": packed.bits,
    }


def float_weight(given: dict[str, Any]) -> Tensor:
    names = ("weight", "scale", "zero_point", "bits")
    return dequantized(*(given[name] for name in names), (given["bias"].numel(), given["x"].shape[-1]))


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}


def by_hand(given: dict[str, Any]) -> Tensor:
    """One row and one channel, operation by operation, as the documentation says."""
    w = dequantized(given["weight"], torch.ones_like(given["scale"]), given["zero_point"], given["bits"],
                    (1, given["x"].numel()))[0]  # fmt: skip
    groups = given["scale"].shape[0]
    total = torch.zeros(())
    for g, (xs, ws) in enumerate(zip(given["x"].chunk(groups), w.chunk(groups), strict=True)):
        for first in range(0, len(xs), 128):
            partial = [torch.zeros(()) for _ in range(4)]
            for k, (x, q) in enumerate(zip(xs[first : first + 128], ws[first : first + 128], strict=True)):
                partial[k % 4] = partial[k % 4] + x * q
            total = total + ((partial[0] + partial[1]) + (partial[2] + partial[3])) * given["scale"][g, 0]
    return total + given["bias"][0]


@pytest.mark.parametrize(("in_features", "groups"), [(300, 1), (262, 2), (35, 5)])
def test_the_reference_adds_in_the_order_that_is_defined(in_features: int, groups: int) -> None:
    arguments = call((), 1, in_features, groups, 8, shifted=True)
    assert reference(**arguments).item() == by_hand(arguments).item()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", [1, 2, 5, 13, 70])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("channels", "in_features", "groups"), [(1, 1, 1), (33, 66, 2), (17, 384, 3), (40, 300, 1)])
def test_native_is_the_reference(
    device: str, channels: int, in_features: int, groups: int, bits: int, rows: int, assert_same: Callable[..., None]
) -> None:
    for shifted in (False, True):
        arguments = call((rows,), channels, in_features, groups, bits, shifted=shifted)
        y = weight_only_linear(**on(device, arguments))
        assert_same(y.cpu(), reference(**arguments))
        exact = arguments["x"].double() @ float_weight(arguments).double().t() + arguments["bias"]
        most = float(arguments["x"].abs().max() * float_weight(arguments).abs().sum(1).max())
        assert (y.cpu() - exact).abs().max() < FLOAT_SUMS * most


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(1, 9), max_size=3),
    channels=st.integers(1, 70),
    groups=st.integers(1, 5),
    size=st.integers(1, 150),
    bits=st.integers(2, 8),
    shifted=st.booleans(),
)
def test_any_shape_on_every_instruction_set(
    rows: list[int], channels: int, groups: int, size: int, bits: int, shifted: bool
) -> None:
    arguments = call(tuple(rows), channels, groups * size, groups, bits, shifted=shifted)
    want = reference(**arguments)
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(weight_only_linear(**arguments), want), isa


def test_a_row_does_not_depend_on_the_others(device: str) -> None:
    arguments = on(device, call((90,), 40, 200, 4))
    together = weight_only_linear(**arguments)
    for row in (0, 63, 64, 89):
        assert torch.equal(weight_only_linear(**{**arguments, "x": arguments["x"][row]}), together[row])


def test_values_that_are_not_finite(device: str) -> None:
    arguments = call((2,), 3, 8)
    arguments["x"][0, 3] = torch.inf
    y = weight_only_linear(**on(device, arguments)).cpu()
    assert torch.equal(y.nan_to_num(nan=7.0), reference(**arguments).nan_to_num(nan=7.0))
    assert not y[0].isfinite().any()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 12), (3, 0, 12), (12,), (2, 0)])
def test_shapes_of_no_row_and_of_none_of_its_values(
    device: str, shape: tuple[int, ...], assert_same: Callable[..., None]
) -> None:
    arguments = call(shape[:-1], 20, shape[-1])
    y = weight_only_linear(**on(device, arguments))
    assert y.shape == (*shape[:-1], 20)
    assert_same(y.cpu(), reference(**arguments))


def test_strided_arguments(device: str, assert_same: Callable[..., None]) -> None:
    arguments = call((6,), 20, 32, 4, shifted=True)
    want = reference(**arguments)
    strided = {
        name: value.repeat_interleave(2, -1)[..., ::2] if isinstance(value, Tensor) else value
        for name, value in on(device, arguments).items()
    }
    assert_same(weight_only_linear(**strided).cpu(), want)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, at the first such call
def test_the_gradient_reaches_the_input() -> None:
    arguments = call((2, 5), 20, 32, 4, shifted=True)
    grad = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(1))
    x = arguments["x"].requires_grad_()
    weight_only_linear(**arguments).backward(grad)
    assert torch.equal(x.grad, grad @ float_weight(arguments))
    tangent = torch.ones_like(x)
    rest = {name: value for name, value in arguments.items() if name != "x"}
    _, derivative = torch.func.jvp(lambda x: weight_only_linear(x, **rest), (x.detach(),), (tangent,))
    assert torch.equal(derivative, tangent @ float_weight(arguments).t())
    assert torch.equal(
        torch.vmap(lambda x: weight_only_linear(x, **rest))(x.detach()), weight_only_linear(x.detach(), **rest)
    )


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"x": torch.zeros(3, 12).double()}, "x has the wrong dtype", "torch.float64", "float32"),
    ({"x": torch.zeros(())}, "x has the wrong shape", "[]", "[..., in_features]"),
    (
        {"x": torch.zeros(3, 13)},
        "the rows of x do not divide into groups",
        "13 values, 2 groups",
        "groups of equal size",
    ),
    ({"x": torch.zeros(3, 24)}, "weight has the wrong shape", "[12, 16]", "[2 * 12, 16]"),
    ({"weight": torch.zeros(12, 16, dtype=torch.int8)}, "weight has the wrong dtype", "torch.int8", "uint8"),
    ({"scale": torch.ones(2, 20)}, "scale has the wrong shape", "[2, 20]", "[groups, 32]"),
    ({"scale": torch.ones(2, 32).half()}, "scale has the wrong dtype", "torch.float16", "float32"),
    ({"zero_point": torch.zeros(2, 32)}, "zero_point has the wrong dtype", "torch.float32", "int8"),
    (
        {"zero_point": torch.zeros(1, 32, dtype=torch.int8)},
        "zero_point has the wrong shape",
        "[1, 32]",
        "[2, 32], as scale",
    ),
    ({"bias": torch.zeros(20).long()}, "bias has the wrong dtype", "torch.int64", "float32"),
    ({"bias": torch.zeros(1, 20)}, "bias has the wrong shape", "[1, 20]", "[out_features]"),
    ({"bits": 5}, "bits is out of range", "5", "4 or 8"),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_errors(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    arguments = {**call((3,), 20, 12, 2), **changed}
    for function in (weight_only_linear, reference):
        with pytest.raises(RuntimeError) as error:
            function(**arguments)
        assert_message(error.value, f"fxquant::weight_only_linear: {what}", got, expected)


def test_meta_tensors_give_shapes() -> None:
    y = weight_only_linear(**on("meta", call((2, 3), 20, 12, 2)))
    assert y.shape == (2, 3, 20)
    assert y.dtype == torch.float32


@pytest.mark.parametrize("bits", [4, 8])
def test_opcheck(bits: int) -> None:
    arguments = call((3,), 20, 12, 2, bits, shifted=True)
    torch.library.opcheck(torch.ops.fxquant.weight_only_linear.default, (), arguments)
