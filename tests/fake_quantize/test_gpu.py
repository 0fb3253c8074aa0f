"""On a GPU: modules keep all there and compute as on the CPU; a model calibrates, simulates, trains and converts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant import fake_quantize
from fxquant.fake_quantize import (
    AdaRoundFakeQuantize,
    FakeQuantize,
    LearnableFakeQuantize,
    default_fused_act_fake_quant,
    default_fused_per_channel_wt_fake_quant,
    disable_fake_quant,
    disable_observer,
)
from fxquant.observers import PerChannelMinMaxObserver

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

MODULES: dict[str, Any] = {
    name: getattr(fake_quantize, name) for name in fake_quantize.__all__ if name.startswith(("default_", "fused_"))
} | {
    "learnable": LearnableFakeQuantize,
    "adaround": AdaRoundFakeQuantize,
    "groups": FakeQuantize.with_args(observer=PerChannelMinMaxObserver, group_size=5),
}
SUMS = {"rtol": 1e-4, "atol": 1e-5}
"""A model's float sums, which a GPU takes in another order; each is then rounded to a step or the next."""


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 10, generator=generator) * (i + 1) for i in range(3)]


def on_gpu(module: nn.Module) -> bool:
    return all(tensor.is_cuda for tensor in (*module.buffers(), *module.parameters()))


@pytest.mark.parametrize("moved", ["first", "later"])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_computes_as_on_the_cpu(name: str, moved: str) -> None:
    """Statistics, grids and parameters are there, to the bit those of the CPU."""
    here, there = MODULES[name](), MODULES[name]()
    first, *others = batches()
    if moved == "later":
        there(first)
    there = there.cuda()
    for x in (first, *others) if moved == "first" else others:
        there(x.cuda())
    for x in (first, *others):
        here(x)
    for module in (here, there):
        module.disable_observer()
    assert on_gpu(there)
    mine, right = first.clone().cuda().requires_grad_(), first.clone().requires_grad_()
    results = there(mine), here(right)
    assert torch.equal(results[0].cpu(), results[1])
    if name != "adaround":
        for result in results:
            result.sum().backward()
        assert mine.grad is not None
        assert torch.equal(mine.grad.cpu(), right.grad)
    state = {key: value.cpu() for key, value in there.state_dict().items()}
    assert all(torch.equal(state[key], value) for key, value in here.state_dict().items())


@pytest.mark.parametrize("name", MODULES)
def test_a_state_of_the_cpu_goes_to_the_gpu_and_back(name: str) -> None:
    here, there, again = MODULES[name](), MODULES[name]().cuda(), MODULES[name]()
    x = batches()[0]
    here(x)
    here.disable_observer()
    here(x)
    there.load_state_dict(here.state_dict())
    again.load_state_dict(there.state_dict())
    assert on_gpu(there)
    assert torch.equal(there(x.cuda()).cpu(), here(x))
    assert torch.equal(again(x), here(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    module, x = FakeQuantize().cuda(), torch.randn(6, 10, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype):
        y = module(nn.functional.linear(x, torch.eye(10, device="cuda")))
    y.float().sum().backward()
    assert y.dtype == dtype
    assert module.scale.dtype == torch.float32
    assert x.grad is not None


def test_reading_a_switch_waits_once() -> None:
    """What a switch says is remembered: a forward does not ask the GPU."""
    module = FakeQuantize().cuda()
    x = batches()[0].cuda()
    module(x)
    module.disable_observer()
    module(x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        module(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(4, 3, 8, 8, generator=generator) for _ in range(3)]


def calibrated(device: str, **qconfig: Any) -> fxq.Quantizer:
    torch.manual_seed(0)
    model = Model().eval().to(device)
    config = fxq.QConfig(**qconfig) if qconfig else None
    prepared = fxq.prepare(model, (images()[0].to(device),), config)
    return fxq.calibrate(prepared, [x.to(device) for x in images()], progress=False)


QCONFIGS = {
    "default": {},
    "fused": {"activation": default_fused_act_fake_quant, "weight": default_fused_per_channel_wt_fake_quant},
    "adaround": {"activation": default_fused_act_fake_quant, "weight": AdaRoundFakeQuantize},
}


@pytest.mark.parametrize("name", QCONFIGS)
def test_a_model_calibrates_simulates_and_trains_there(name: str) -> None:
    there = calibrated("cuda", **QCONFIGS[name])
    assert all(on_gpu(observer) for observer in there.observers.values())
    simulated = there.convert(to="fake_quant")
    assert on_gpu(simulated)
    x = images()[0]
    expected = calibrated("cpu", **QCONFIGS[name]).convert(to="fake_quant")
    step = max(
        float(qparams.scale.max()) for ref, qparams in expected.quant_plan.qparams.items() if ref.kind == "activation"
    )
    assert (simulated(x.cuda()).cpu() - expected(x)).abs().max() <= step + SUMS["atol"]
    simulated.train()
    simulated(x.cuda()).square().sum().backward()
    assert simulated.conv.weight.grad.is_cuda
    assert simulated.conv.weight.grad.abs().sum() > 0


def test_a_model_on_a_gpu_becomes_int8_there_and_moves_to_the_cpu() -> None:
    there, here = calibrated("cuda"), calibrated("cpu")
    here.load_state_dict(there.state_dict())
    x = images()[0]
    int8 = there.convert()
    assert on_gpu(int8)
    assert torch.equal(int8.cpu()(x), here.convert()(x))


def test_training_a_prepared_model_there() -> None:
    torch.manual_seed(0)
    qat = fxq.prepare_qat(Model().train().cuda(), (images()[0].cuda(),))
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.01)
    for x in images():
        optimizer.zero_grad()
        qat(x.cuda()).square().sum().backward()
        optimizer.step()
    assert on_gpu(qat)
    qat.apply(disable_observer)
    quiet = copy.deepcopy(qat).eval()
    before = quiet(images()[0].cuda())
    quiet.apply(disable_fake_quant)
    assert not torch.equal(quiet(images()[0].cuda()), before)
