from __future__ import annotations

import warnings

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxquant.kernels.interception import is_intercepted


def test_modes_and_transforms_intercept_operators() -> None:
    found = [is_intercepted()]

    def ask(x: torch.Tensor) -> torch.Tensor:
        found.append(is_intercepted())
        return x * 2

    for mode in (TorchFunctionMode, TorchDispatchMode):
        with mode():
            found.append(is_intercepted())
    torch.func.vmap(ask)(torch.ones(2))
    ask(torch.ones(2))
    assert found == [False, True, True, True, False]


def test_so_does_a_trace_of_torch_jit() -> None:
    found = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        found.append(is_intercepted())
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is leaving torch, and says so
        torch.jit.trace(ask, (torch.ones(2),), check_trace=False)
    assert found == [True]
