"""The fused observer and fake-quantize: torch's results and statistics, and what torch refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.kernels import fused_moving_avg_obs_fake_quant

ON, OFF = torch.tensor([1]), torch.tensor([0])
TWO_ROUNDINGS = 2.0**-22
"""The framework computes the scale in float64: it may round to the next float32, and so may its products."""
State = tuple[Tensor, Tensor, Tensor, Tensor]


def state(channels: int = 1, low: float = torch.inf, high: float = -torch.inf) -> State:
    """running_min, running_max, scale, zero_point."""
    return (
        torch.full((channels,), low),
        torch.full((channels,), high),
        torch.ones(max(channels, 1)),
        torch.zeros(max(channels, 1), dtype=torch.int32),
    )


def batches(count: int = 3, **kwargs: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, 5, generator=generator).mul(1 + i).to(**kwargs) for i in range(count)]


@pytest.mark.parametrize("limits", [(0, 255), (-128, 127), (0, 127)])
@pytest.mark.parametrize("channels", [1, 0])
def test_statistics_results_and_gradients_are_those_of_the_framework(limits: tuple[int, int], channels: int) -> None:
    ours, theirs = state(channels), state(channels)
    for batch in batches():
        found = []
        for function, statistics in (
            (fused_moving_avg_obs_fake_quant, ours),
            (torch.fused_moving_avg_obs_fake_quant, theirs),
        ):
            x = batch.clone().requires_grad_()
            y = function(x, ON, ON, *statistics, 0.3, *limits, 0, channels == 0)
            y.backward(batch)
            found.append((y.detach(), x.grad, *statistics))
        for mine, other in zip(*found, strict=True):
            assert mine.dtype == other.dtype
            torch.testing.assert_close(mine, other, rtol=TWO_ROUNDINGS, atol=0)


@pytest.mark.parametrize("limits", [(0, 255), (-128, 127), (0, 127), (0, 254)])
def test_a_symmetric_grid_is_that_of_the_observers(limits: tuple[int, int]) -> None:
    """The framework divides by 127 or 128 steps, whichever side is longer, where the observers divide by 127.5."""
    ours, theirs = state(), state()
    for batch in batches():
        for function, statistics in (
            (fused_moving_avg_obs_fake_quant, ours),
            (torch.fused_moving_avg_obs_fake_quant, theirs),
        ):
            function(batch, ON, ON, *statistics, 0.3, *limits, 0, False, True)
        low, high, scale, zero_point = ours
        assert torch.equal(low, theirs[0])
        assert torch.equal(high, theirs[1])
        assert torch.equal(scale, torch.maximum(-low, high) / ((limits[1] - limits[0]) / 2))
        assert torch.equal(zero_point, theirs[3])


@pytest.mark.parametrize(("observes", "quantizes"), [(OFF, OFF), (ON, OFF), (OFF, ON)])
def test_switches_say_what_changes(observes: Tensor, quantizes: Tensor) -> None:
    (x,) = batches(1)
    ours, theirs = state(1, -1.0, 2.0), state(1, -1.0, 2.0)
    y = fused_moving_avg_obs_fake_quant(x, observes, quantizes, *ours, 0.3, 0, 255, -1)
    expected = torch.fused_moving_avg_obs_fake_quant(x, observes, quantizes, *theirs, 0.3, 0, 255, -1)
    assert torch.equal(y, expected)
    assert y is not x
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=TWO_ROUNDINGS, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axis", [1, -1])
def test_any_dtype_and_any_axis(dtype: torch.dtype, axis: int) -> None:
    """The framework takes neither."""
    x = batches(1, dtype=dtype)[0]
    low, high, *_ = statistics = state(0)
    y = fused_moving_avg_obs_fake_quant(x, ON, ON, *statistics, 0.3, 0, 255, axis, True)
    assert y.dtype == dtype
    others = [d for d in range(3) if d != axis % 3]
    assert torch.equal(low, x.float().amin(others))
    assert torch.equal(high, x.float().amax(others))


def test_an_empty_tensor_changes_nothing() -> None:
    statistics = state(1, -1.0, 2.0)
    x = torch.empty(0, 3)
    y = fused_moving_avg_obs_fake_quant(x, ON, ON, *statistics, 0.3, 0, 255, 0)
    assert y.shape == x.shape
    assert y is not x
    for now, before in zip(statistics, state(1, -1.0, 2.0), strict=True):
        assert torch.equal(now, before)


def test_statistics_count_as_changed() -> None:
    """Else autograd would not see that a tensor it keeps has changed."""
    statistics = state()
    before = [each._version for each in statistics]
    fused_moving_avg_obs_fake_quant(batches(1)[0].requires_grad_(), ON, ON, *statistics, 0.3, 0, 255, 0)
    assert all(each._version > version for each, version in zip(statistics, before, strict=True))


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"input": torch.ones(2, 3).int()},
        "input has the wrong dtype",
        "torch.int32",
        "float32, float64, float16 or bfloat16",
    ),
    ({"running_min": torch.zeros(2)}, "running_min has the wrong shape", "[2]", "[1]"),
    ({"running_max": torch.zeros(1).double()}, "running_max has the wrong dtype", "torch.float64", "float32"),
    ({"scale": torch.ones(2)}, "scale has the wrong shape", "[2]", "[1]"),
    ({"zero_point": torch.zeros(1)}, "zero_point has the wrong dtype", "torch.float32", "int32"),
    ({"observer_on": torch.tensor([1, 1])}, "observer_on has the wrong shape", "[2]", "[1]"),
    ({"fake_quant_on": torch.tensor([])}, "fake_quant_on has the wrong shape", "[0]", "[1]"),
    ({"quant_min": 5, "quant_max": 4}, "quant_min is above quant_max", "5 and 4", "quant_min <= quant_max"),
    ({"ch_axis": 2}, "axis is out of range", "2", "a dimension of the tensor, which has 2"),
    (
        {"observer_on": OFF, "running_min": torch.tensor([torch.inf]), "running_max": torch.tensor([-torch.inf])},
        "there is no range to choose qparams for",
        "running_min above running_max",
        "a batch with finite values, observed before or now",
    ),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_bad_arguments(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    names = ("running_min", "running_max", "scale", "zero_point")
    arguments: dict[str, Any] = {
        **{"input": torch.ones(2, 3), "observer_on": ON, "fake_quant_on": ON},
        **dict(zip(names, state(1, -1.0, 1.0), strict=True)),
        **{"averaging_const": 0.3, "quant_min": 0, "quant_max": 255, "ch_axis": 0},
        **changed,
    }
    with pytest.raises(RuntimeError) as caught:
        fused_moving_avg_obs_fake_quant(**arguments)
    assert_message(caught.value, f"fxquant::fused_moving_avg_obs_fake_quant: {what}", got, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@pytest.mark.parametrize("per_row", [False, True])
def test_the_operator_passes_the_checks_of_the_framework(per_row: bool) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    statistics = state(3 if per_row else 1, -1.0, 1.0)
    operator = torch.ops.fxquant._fused_moving_avg_obs_fq_helper.default
    torch.library.opcheck(operator, (x, ON, ON, *statistics, 0.3, 0, 255, 1, per_row, False))


def test_in_a_compiled_function() -> None:
    def function(x: Tensor, *statistics: Tensor) -> Tensor:
        return fused_moving_avg_obs_fake_quant(x * 2, ON, ON, *statistics, 0.3, 0, 255, 0).square()

    found = []
    for each in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        x, statistics = batches(1)[0].requires_grad_(), state()
        y = each(x, *statistics)
        y.sum().backward()
        found.append((y.detach(), x.grad, *statistics))
    for eager, compiled in zip(*found, strict=True):
        assert torch.equal(eager, compiled)
