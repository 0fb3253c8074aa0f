"""``fxquant::mul``. It shares its layouts and broadcasting with ``fxquant::add``, whose tests try them all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fxquant.kernels.elementwise.binary import mul
from fxquant.kernels.elementwise.binary import mul_reference as reference

TIE = 1e-3
"""In steps: float32 rounds three times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 37, 9, 11), (2, 37, 1, 1), (37, 1, 1), (1, 37, 9, 1), ()])
def test_native_is_reference(device, stored, assert_same, dtype, channels_last: bool, shape: tuple[int, ...]) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = stored(2, 37, 9, 11, dtype=dtype, channels_last=channels_last)
    gate = stored(*shape, dtype=dtype, channels_last=channels_last and len(shape) == 4)
    for arguments in ((x, 0.1, 3, gate, 0.07, 5), (gate, 0.02, 3, x, 0.3, 5)):
        for rest in ((0.2, 7, low, high), (0.5, 7, low + 10, high - 10)):
            assert_same(mul(*arguments, *rest), reference(*arguments, *rest))


@pytest.mark.parametrize("shape", [(0,), (1,), (65,), (3, 50021)])
def test_sizes_from_nothing_to_several_tasks(device, stored, assert_same, shape: tuple[int, ...]) -> None:
    arguments = (stored(*shape), 0.1, 3, stored(*shape), 0.07, 5, 0.2, 7, 0, 255)
    assert_same(mul(*arguments), reference(*arguments))


def test_rows_of_any_length(device, stored, assert_same) -> None:
    """Rows are covered by blocks of 64, 32, 16 and 1, of which the last may overlap."""
    for channels in (*range(1, 82), 127, 128, 129):
        x, gate = stored(1, channels, 2, 3, channels_last=True), stored(1, channels, 1, 1)
        arguments = (x, 0.1, 3, gate, 0.07, 5, 0.2, 7, 0, 255)
        assert_same(mul(*arguments), reference(*arguments))


@pytest.mark.parametrize("scale", [0.013, 0.2, 17.0])
def test_every_pair_of_bytes_against_float64(isa, scale: float) -> None:
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    a, b = q[:, None].expand(256, 256).contiguous(), q[None, :].expand(256, 256).contiguous()
    actual = mul(a, 0.1, 100, b, 0.07, 5, scale, 90, 20, 250)
    sa, sb, s = (torch.tensor(value, dtype=torch.float32).double() for value in (0.1, 0.07, scale))
    steps = (a.double() - 100) * (b.double() - 5) * sa * sb / s + 90
    expected = steps.round().clamp(20, 250)
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert (actual.double() - expected).abs().max() <= 1
    assert torch.equal(actual.double()[far_from_tie], expected[far_from_tie])


def test_scales_that_overflow_or_vanish_together(device, stored, assert_same) -> None:
    a, b = stored(1000), stored(1000)
    for scale in (1e30, 1e-30):
        arguments = (a, scale, 3, b, scale, 5, 1.0, 7, 1, 254)
        assert_same(mul(*arguments), reference(*arguments))


def test_within_one_step_of_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    a, b = stored(2, 16, 8, 8), stored(2, 16, 8, 8)
    theirs = torch.ops.quantized.mul(framework_tensor(a, 0.1, 3), framework_tensor(b, 0.07, 5), 0.2, 7).int_repr()
    assert (mul(a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255).int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"b": torch.zeros(2)}, "b has the wrong dtype", "torch.float32", "uint8"),
        ({"b_zero_point": 300}, "b_zero_point is out of range", "300", "0 to 255"),
        ({"a_scale": -1.0}, "a_scale is unusable", "-1", "a positive, normal float32"),
    ],
)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "a": torch.zeros(2, dtype=torch.uint8), "a_scale": 0.1, "a_zero_point": 0,
        "b": torch.zeros(2, dtype=torch.uint8), "b_scale": 0.1, "b_zero_point": 0,
        "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (mul, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::mul: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last: bool) -> None:
    a = stored(2, 5, 4, 4, channels_last=channels_last)
    for b in (stored(2, 5, 4, 4), stored(2, 5, 1, 1), stored(4)):
        torch.library.opcheck(torch.ops.fxquant.mul.default, (a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255))


def test_compiles_in_one_graph(stored) -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.fxquant.mul(a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255) + 1

    a, b = stored(2, 5), stored(2, 5)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(a, b), run(a, b))
