"""``reestimate_batch_norm``: means and variances of the quantized network, and nothing else is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError

PER_CHANNEL, PER_TENSOR = (
    fxq.FakeQuantize.with_args(observer=observer, dtype=torch.int8, qscheme=scheme, bits=4)
    for observer, scheme in (
        (fxq.PerChannelMinMaxObserver.with_args(ch_axis=0), "per_channel_symmetric"),
        (fxq.MinMaxObserver, "per_tensor_symmetric"),
    )
)


def net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv2d(6, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
        )


def data() -> list[torch.Tensor]:
    return [torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + 0.5 for seed in range(3)]


def trained(weight: Any = PER_CHANNEL) -> Any:
    """Weights have moved since the last statistics."""
    qconfig = fxq.QConfig(activation=fxq.FakeQuantize.with_args(observer=fxq.MinMaxObserver), weight=weight)
    qat = fxq.prepare_qat(net(), data()[0], qconfig)
    for batch in data():
        qat(batch)
    qat.apply(fxq.disable_observer)
    with torch.no_grad():
        for norm in (qat.get_submodule("1"), qat.get_submodule("5")):
            norm.running_mean.add_(0.3)
            norm.running_var.mul_(2)
    return qat


def test_statistics_are_those_of_the_quantized_network() -> None:
    qat = trained()
    first = qat.get_submodule("0")
    before = first.weight_fake_quant.scale.clone()
    seen: list[torch.Tensor] = []
    handle = qat.get_submodule("1").register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    assert fxq.reestimate_batch_norm(qat, data(), progress=False) is qat
    handle.remove()
    norm = qat.get_submodule("1")
    expected = [torch.stack([each.transpose(0, 1).flatten(1).mean(1) for each in seen]).mean(0)]
    expected.append(torch.stack([each.transpose(0, 1).flatten(1).var(1) for each in seen]).mean(0))
    assert torch.allclose(norm.running_mean, expected[0], atol=1e-5)
    assert torch.allclose(norm.running_var, expected[1], rtol=1e-4)
    assert not torch.equal(first.weight_fake_quant.scale, before)
    again = copy.deepcopy(qat.state_dict())
    fxq.reestimate_batch_norm(qat, data(), progress=False)  # the same network gives the same statistics
    for name, value in qat.state_dict().items():
        assert torch.allclose(value.double(), again[name].double(), rtol=1e-3, atol=1e-4), name


def test_integers_stay_where_each_channel_has_its_scale() -> None:
    qat = trained()
    before = fxq.convert(copy.deepcopy(qat).eval())
    fxq.reestimate_batch_norm(qat, data(), progress=False)
    after = fxq.convert(copy.deepcopy(qat).eval())
    for name in ("0", "4"):
        assert torch.equal(before.get_submodule(name).unpacked_weight(), after.get_submodule(name).unpacked_weight())
    x = data()[0]
    assert not torch.equal(before(x), after(x))
    assert fxq.convert(copy.deepcopy(qat).eval(), check=x).parity.breaches == ()


def test_one_scale_for_a_tensor_is_that_of_its_new_range() -> None:
    qat = trained(PER_TENSOR)
    fxq.reestimate_batch_norm(qat, data(), progress=False)
    layer, norm = qat.get_submodule("0"), qat.get_submodule("1")
    folded = layer.weight * (norm.weight / (norm.running_var + norm.eps).sqrt()).reshape(-1, 1, 1, 1)
    assert torch.allclose(layer.weight_fake_quant.scale, folded.abs().max() / 7.5, rtol=1e-4)


@pytest.mark.parametrize("observer", [fxq.PerChannelMinMaxObserver, fxq.MSEObserver])
def test_scales_that_are_powers_of_two_stay_such(observer: Any) -> None:
    scheme = fxq.QScheme(bits=4, symmetric=True, axis=0, power_of_two=True)
    qat = trained(fxq.FakeQuantize.with_args(observer=observer, scheme=scheme))
    scales = qat.get_submodule("0").weight_fake_quant.scale.clone()
    fxq.reestimate_batch_norm(qat, data(), progress=False)
    layer, norm = qat.get_submodule("0"), qat.get_submodule("1")
    found = layer.weight_fake_quant.scale
    assert torch.equal(found.log2().round(), found.log2())
    assert not torch.equal(found, scales), "the variances are a half, so ranges have grown"
    if observer is fxq.PerChannelMinMaxObserver:
        folded = layer.weight * (norm.weight / (norm.running_var + norm.eps).sqrt()).reshape(-1, 1, 1, 1)
        fresh = observer(scheme=scheme)
        fresh(folded.detach())
        assert torch.equal(found, fresh.qparams().scale)


def test_modes_switches_and_all_other_state_stay() -> None:
    qat = trained()
    qat.get_submodule("5").apply(fxq.freeze_bn_stats)
    qat.get_submodule("4").weight_fake_quant.enable_observer()
    modes = [module.training for module in qat.modules()]
    momenta = [getattr(module, "momentum", None) for module in qat.modules()]
    before = copy.deepcopy(qat.state_dict())
    fxq.reestimate_batch_norm(qat, iter(data()), num_batches=2, progress=False)
    assert [module.training for module in qat.modules()] == modes
    assert [getattr(module, "momentum", None) for module in qat.modules()] == momenta
    assert not any(module._forward_pre_hooks for module in qat.modules())
    changed = {name for name, value in qat.state_dict().items() if not torch.equal(value, before[name])}
    parts = ("running_mean", "running_var", "weight_fake_quant.scale", "process.min_val", "process.max_val")
    assert {name for name in changed if not name.endswith(parts)} == set()
    assert {"1.running_mean", "1.running_var", "5.running_mean", "5.running_var"} <= changed


def test_bad_input() -> None:
    qat = trained()
    before = copy.deepcopy(qat.state_dict())
    prepared = fxq.calibrate(fxq.prepare(net().eval(), data()[0]), data(), progress=False)
    for wrong in (net(), prepared, fxq.convert(prepared)):
        with pytest.raises(InputError, match="reestimate_batch_norm takes what prepare_qat gave"):
            fxq.reestimate_batch_norm(wrong, data())  # type: ignore[arg-type]
    plain = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    with pytest.raises(InputError, match="the model has no batch norm with running statistics"):
        fxq.reestimate_batch_norm(plain, [torch.randn(2, 4)])
    with pytest.raises(CalibrationError, match="no batch"):
        fxq.reestimate_batch_norm(qat, [])
    flat = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4))
    flat(torch.randn(3, 4))
    with pytest.raises(InputError, match=r"(?s)batch 0: a batch norm cannot normalize a single value of each channel"):
        fxq.reestimate_batch_norm(flat, [torch.randn(1, 4)], progress=False)
    with torch.no_grad():
        qat.get_submodule("4").bias[0] = torch.nan
    with pytest.raises(CalibrationError, match=r"(?s)values that are not finite: their statistics stay.*got: +5"):
        fxq.reestimate_batch_norm(qat, data(), progress=False)
    del before["4.bias"]
    assert all(torch.equal(qat.state_dict()[name], value) for name, value in before.items())
