"""Networks of torchvision in explicit form: equal to the reference at every quantize, exported with a dynamic batch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torchvision

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from tests.exporting.integers import integers_of


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "swin_t"])
def test_equals_the_reference(name: str) -> None:
    torch.manual_seed(0)
    model, x = torchvision.models.get_model(name, weights=None).eval(), torch.randn(2, 3, 64, 64)
    shuffles = name.startswith("shufflenet")  # its ranges are unequal while weights are random
    with pytest.warns(FxQuantWarning, match="very different size|one channel reaches") if shuffles else nullcontext():
        quantizer = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    wanted, result = integers_of(fxq.convert(quantizer, to="reference"), x)
    explicit = fxq.explicit(fxq.convert(quantizer))
    found, given = integers_of(explicit, x)
    assert torch.equal(given, result)
    for value, integers in wanted.items():
        steps = (found[value].int() - integers.int()).abs()
        if value.startswith(
            "softmax"
        ):  # torch's sums of exponentials have other last bits: a tie may fall the other way
            assert steps.max() <= 1
            assert (steps != 0).float().mean() <= 1e-4
        else:
            assert not steps.any(), value
    program = fxq.export(explicit, x, dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    more = torch.cat([x, x.flip(0), x])
    assert torch.equal(program.module()(more), explicit(more))
