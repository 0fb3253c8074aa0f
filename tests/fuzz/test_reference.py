"""The references of operators take the place of native kernels, and only while they are asked for."""

from __future__ import annotations

import torch

from fxquant.kernels import dequantize
from tests.fuzz.reference import ReferenceKernels

Q, SCALE, ZERO = (
    torch.arange(12, dtype=torch.uint8).view(3, 4),
    torch.tensor([0.5]),
    torch.tensor([3], dtype=torch.int32),
)


def names_run(body) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        body()
    return [event.name for event in profile.events() if event.name.startswith("aten::")]


def test_the_reference_runs():
    """It is made of torch's operators; a native kernel is not."""

    def with_reference():
        with ReferenceKernels():
            return dequantize(Q, SCALE, ZERO)

    assert torch.equal(with_reference(), dequantize(Q, SCALE, ZERO))
    assert "aten::mul" in names_run(with_reference)
