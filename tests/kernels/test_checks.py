"""The words of the argument checks. That native kernels use the same is tested with each operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits, check_zero_points


@pytest.mark.parametrize(
    ("check", "what", "got", "expected"),
    [
        (lambda: check_axis("op", 3, 3), "axis is out of range", "3", "a dimension of the tensor, which has 3"),
        (lambda: check_axis("op", -4, 3), "axis is out of range", "-4", "a dimension of the tensor, which has 3"),
        (lambda: check_axis("op", 0, 0), "axis is out of range", "0", "a dimension of the tensor, which has 0"),
        (lambda: check_count("op", "scale", torch.ones(2), 3), "scale has the wrong shape", "[2]", "[3]"),
        (lambda: check_count("op", "scale", torch.ones(3, 1), 3), "scale has the wrong shape", "[3, 1]", "[3]"),
        (
            lambda: check_dtype("op", "x", torch.ones(1), (torch.uint8, torch.int8)),
            "x has the wrong dtype",
            "torch.float32",
            "uint8 or int8",
        ),
        (lambda: check_dtype("op", "x", torch.int8, (torch.bool,)), "x has the wrong dtype", "torch.int8", "bool"),
        (lambda: check_limits("op", 1, 0), "quant_min is above quant_max", "1 and 0", "quant_min <= quant_max"),
        (
            lambda: check_limits("op", 0, 256, torch.uint8),
            "quant_min and quant_max do not fit the integers they limit",
            "0 and 256",
            "0 to 255",
        ),
        (
            lambda: check_zero_points("op", torch.tensor([0, 9]), 0, 8),
            "a zero point lies outside [quant_min, quant_max]",
            "9",
            "0 to 8",
        ),
        (
            lambda: check_zero_points("op", -1, 0, 8),
            "a zero point lies outside [quant_min, quant_max]",
            "-1",
            "0 to 8",
        ),
    ],
)
def test_refusals(
    check: Callable[[], object], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    with pytest.raises(KernelError) as error:
        check()
    assert_message(error.value, f"op: {what}", got, expected)


def test_what_is_right_passes() -> None:
    assert [check_axis("op", axis, 3) for axis in (0, 2, -1, -3)] == [0, 2, 2, 0]
    check_count("op", "scale", torch.ones(3), 3)
    check_count("op", "scale", torch.tensor(1.0), 1)
    check_dtype("op", "x", torch.ones(1), (torch.float32,))
    check_limits("op", -(2**31), 2**31 - 1)
    check_limits("op", 0, 255, torch.uint8)
    check_zero_points("op", torch.tensor(3), 0, 8)
    check_zero_points("op", torch.empty(0), 0, 8)
