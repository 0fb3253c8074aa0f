"""``fxquant::add``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.kernels.elementwise.binary import add
from fxquant.kernels.elementwise.binary import add_reference as reference

QPARAMS = (0.1, 3, 0.07, 5, 0.2, 7)
"""Scale and zero point of a, of b, of the result."""
TIE = 1e-3
"""In steps: float32 rounds a few times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""
SCALE = "a positive, normal float32"
ERROR_CASES = [
    ({"a": torch.zeros(2)}, "a has the wrong dtype", "torch.float32", "uint8 or int8"),
    ({"b": torch.zeros(2, dtype=torch.int8)}, "b has the wrong dtype", "torch.int8", "uint8"),
    (
        {"b": torch.zeros(3, dtype=torch.uint8)},
        "a and b do not broadcast",
        "[2] and [3]",
        "sizes that are equal or 1, from the last dimension on",
    ),
    ({"a_scale": 0.0}, "a_scale is unusable", "0", SCALE),
    ({"b_scale": 1e-39}, "b_scale is unusable", "1e-39", SCALE),
    ({"scale": float("nan")}, "scale is unusable", "nan", SCALE),
    ({"scale": 1e39}, "scale is unusable", "1e+39", SCALE),
    ({"a_zero_point": -1}, "a_zero_point is out of range", "-1", "0 to 255"),
    ({"zero_point": 256}, "zero_point is out of range", "256", "0 to 255"),
    (
        {"quant_min": 9, "quant_max": 8},
        "quant_min and quant_max are out of range",
        "[9, 8]",
        "quant_min <= quant_max, both in 0 to 255",
    ),
]


def limits(q: Tensor) -> tuple[int, int]:
    info = torch.iinfo(q.dtype)
    return info.min, info.max


def both_orders(a: Tensor, b: Tensor) -> list[tuple[object, ...]]:
    za, zb, z = QPARAMS[1::2]
    low, high = limits(a)
    return [
        (a, 0.1, za, b, 0.07, zb, 0.2, z, low, high),
        (b, 0.1, za, a, 0.07, zb, 0.2, z, low + 10, high - 10),
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda q: q.clone(), id="same"),
        pytest.param(lambda q: q.contiguous(), id="contiguous"),
        pytest.param(lambda q: q.contiguous(memory_format=torch.channels_last), id="channels_last"),
        pytest.param(lambda q: q[:, :, :1, :1], id="N-C-1-1"),
        pytest.param(lambda q: q[:, :1], id="N-1-H-W"),
        pytest.param(lambda q: q[0, 0, 0], id="W"),
        pytest.param(lambda q: q[0, 0, 0, 0], id="scalar"),
        pytest.param(lambda q: q[:1, :, :1], id="1-C-1-W"),
        pytest.param(lambda q: q[:, :, :, :1].expand(-1, -1, -1, 11), id="expanded"),
        pytest.param(lambda q: q.transpose(2, 3).contiguous().transpose(2, 3), id="transposed"),
    ],
)
def test_native_is_reference(
    device, stored, assert_same, dtype, channels_last, other: Callable[[Tensor], Tensor]
) -> None:
    x = stored(2, 37, 9, 11, dtype=dtype, channels_last=channels_last)
    for arguments in both_orders(x, other(stored(2, 37, 9, 11, dtype=dtype, channels_last=channels_last))):
        assert_same(add(*arguments), reference(*arguments))


def test_views_that_are_not_dense(device, stored, assert_same) -> None:
    a, b = stored(2, 8, 6, 6, channels_last=True)[:, :, ::2], stored(2, 8, 6, 6)[:, ::1, 1::2]
    for arguments in both_orders(a, b):
        assert_same(add(*arguments), reference(*arguments))


def test_neither_input_has_the_shape_of_the_result(device, stored, assert_same) -> None:
    for arguments in both_orders(stored(5, 1, 7), stored(3, 1)):
        assert add(*arguments).shape == (5, 3, 7)
        assert_same(add(*arguments), reference(*arguments))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3, 4, 4), (1,), (65,), (3, 50021)])
def test_sizes_from_nothing_to_several_tasks(device, stored, assert_same, shape: tuple[int, ...]) -> None:
    for arguments in both_orders(stored(*shape), stored(*shape)):
        assert_same(add(*arguments), reference(*arguments))


def test_tasks_that_begin_within_a_row(device, stored, assert_same) -> None:
    """32768 elements are a task, and no multiple of 37 * 41: rows of a broadcast are cut."""
    a, b = stored(40, 37, 41), stored(40, 1, 41)
    for arguments in both_orders(a, b):
        assert_same(add(*arguments), reference(*arguments))


@pytest.mark.parametrize("scale", [0.013, 0.2, 17.0])
def test_every_pair_of_bytes_against_float64(isa, scale: float) -> None:
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    a, b = q[:, None].expand(256, 256).contiguous(), q[None, :].expand(256, 256).contiguous()
    actual = add(a, 0.1, 100, b, 0.07, 5, scale, 90, 20, 250)
    sa, sb, s = (torch.tensor(value, dtype=torch.float32).double() for value in (0.1, 0.07, scale))
    steps = ((a.double() - 100) * sa + (b.double() - 5) * sb) / s + 90
    expected = steps.round().clamp(20, 250)
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert (actual.double() - expected).abs().max() <= 1
    assert torch.equal(actual.double()[far_from_tie], expected[far_from_tie])


def test_ties_go_to_even(isa) -> None:
    a = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.uint8)
    zero = torch.zeros_like(a)
    assert add(a, 0.5, 0, zero, 1.0, 0, 1.0, 0, 0, 255).tolist() == [0, 1, 2, 2, 2, 3]
    assert add(a, 0.5, 0, zero, 1.0, 0, 1.0, 1, 0, 255).tolist() == [1, 2, 3, 3, 3, 4]  # rounded before the zero point


def test_far_beyond_the_grid_saturates(isa, stored, assert_same) -> None:
    """Infinite sums and NaN (infinity minus infinity), which only huge scales can give, and steps beyond 2^31."""
    a = stored(1000)
    for a_scale, b_scale, scale in ((3e38, 3e38, 1.0), (1e38, 1e-37, 1e-37), (1e6, 1.0, 1e-6)):
        arguments = (a, a_scale, 3, a.flip(0), b_scale, 5, scale, 7, 1, 254)
        assert_same(add(*arguments), reference(*arguments))
    q = torch.tensor([255, 255, 0, 3], dtype=torch.uint8)
    other = torch.tensor([255, 0, 0, 5], dtype=torch.uint8)
    assert add(q, 3e38, 3, other, 3e38, 5, 1.0, 7, 1, 254).tolist() == [254, 1, 1, 7]


def test_relu_is_a_limit(isa, stored) -> None:
    a, b = stored(4, 100), stored(4, 100)
    plain = add(a, 0.1, 128, b, 0.1, 128, 0.2, 128, 0, 255)
    assert torch.equal(add(a, 0.1, 128, b, 0.1, 128, 0.2, 128, 128, 255), plain.clamp(min=128))


def test_within_one_step_of_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    a, b = stored(2, 16, 8, 8), stored(2, 16, 8, 8)
    theirs = torch.ops.quantized.add(framework_tensor(a, 0.1, 3), framework_tensor(b, 0.07, 5), 0.2, 7).int_repr()
    assert (add(a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255).int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize(("changes", "what", "got", "expected"), ERROR_CASES)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "a": torch.zeros(2, dtype=torch.uint8), "a_scale": 0.1, "a_zero_point": 0,
        "b": torch.zeros(2, dtype=torch.uint8), "b_scale": 0.1, "b_zero_point": 0,
        "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (add, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::add: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last: bool) -> None:
    a = stored(2, 5, 4, 4, channels_last=channels_last)
    for b in (stored(2, 5, 4, 4), stored(2, 5, 1, 1), stored(4)):
        torch.library.opcheck(torch.ops.fxquant.add.default, (a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255))


def test_compiles_in_one_graph(stored) -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.fxquant.add(a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255) + 1

    a, b = stored(2, 5), stored(2, 5)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(a, b), run(a, b))
