"""What calls may do while they are only looked at."""

from __future__ import annotations

import pytest
import torch

from fxquant.runtime.modes import ForbidCompute, ForbidRandom, NotRecordableError


def test_looking_lets_through_what_computes_nothing() -> None:
    x = torch.arange(12).reshape(2, 6)
    with ForbidCompute():
        assert x.size(1) == 6
        assert x.reshape(3, 4).transpose(0, 1).shape == (4, 3)
        with pytest.raises(NotRecordableError):
            x.reshape(3, 4).t().reshape(12)
        with pytest.raises(NotRecordableError):
            x.max()


def test_what_is_the_same_each_time_may_be_computed() -> None:
    x = torch.ones(3)
    with ForbidRandom():
        assert torch.equal(x + 1, torch.full((3,), 2.0))
        with pytest.raises(NotRecordableError, match="rand"):
            torch.rand_like(x)
