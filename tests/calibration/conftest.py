"""The network that tests of calibration share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.calibration.network import Net


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()
