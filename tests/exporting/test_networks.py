"""Networks of torchvision in explicit form: equal to the reference at every quantize, exported with a dynamic batch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models import SwinTransformer

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from tests.exporting.integers import integers_of

AT_TIES = {"resnet18": 0.0, "mobilenet_v3_small": 0.0, "shufflenet_v2_x0_5": 0.0, "small swin": 1e-4, "swin_t": 1e-4}
"""The share of a tensor's values that may be a step off if int8 is made explicit: in attention int8 has the factor of a
product in its scale, the reference multiplies by it, so that a value at a tie may fall the other way."""


SLOW = ("mobilenet_v3_small", "shufflenet_v2_x0_5", "swin_t")


def network(name: str) -> nn.Module:
    if name != "small swin":
        return torchvision.models.get_model(name, weights=None)
    return SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=100)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in AT_TIES]
)
def test_equals_the_reference(name: str) -> None:
    torch.manual_seed(0)
    model, x = network(name).eval(), torch.randn(2, 3, 64, 64)
    shuffles = name.startswith("shufflenet")  # its ranges are unequal while weights are random
    with pytest.warns(FxQuantWarning, match="very different size|one channel reaches") if shuffles else nullcontext():
        quantizer = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    reference = fxq.convert(quantizer, to="reference")
    wanted, result = integers_of(reference, x)
    same, given = integers_of(fxq.explicit(reference), x)
    assert torch.equal(given, result)
    assert [value for value in wanted if not torch.equal(same[value], wanted[value])] == []
    explicit = fxq.explicit(fxq.convert(quantizer))
    found, given = integers_of(explicit, x)
    assert torch.equal(given, result)
    for value, integers in wanted.items():
        steps = (found[value].int() - integers.int()).abs()
        assert steps.max() <= 1, value
        assert (steps != 0).float().mean() <= AT_TIES[name], value
    program = fxq.export(explicit, x, dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    more = torch.cat([x, x.flip(0), x])
    assert torch.equal(program.module()(more), explicit(more))
