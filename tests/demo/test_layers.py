from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import fxquant as fxq
from fxquant.demo.layers import layer_sqnr
from fxquant.measure.noise import sqnr


def test_one_value_for_each_layer_that_multiplies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)).eval()
    x = torch.randn(4, 3, 8, 8)
    plain = replace(fxq.get_default_qconfig(), correct_bias=False)  # corrected, the last may be nearer
    prepared = fxq.prepare(model, x, plain)
    prepared.observe(x)
    int8 = fxq.convert(prepared)
    (first, first_db), (last, last_db) = layer_sqnr(prepared, int8, x)
    assert (first, last) == ("0", "4")
    assert first_db > last_db > 20  # noise adds up
    with torch.no_grad():
        assert (
            abs(last_db - sqnr(model(x), int8(x))) < 1e-3
        )  # the last layer is the output: the same value, dequantized
