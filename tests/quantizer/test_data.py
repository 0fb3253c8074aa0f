"""Steps under ``torch.inference_mode`` make tensors that can be written to afterwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fxquant as fxq

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    return nn.Sequential(*layers).eval()


def made_under_inference(module: nn.Module) -> list[str]:
    state: dict[str, Tensor] = dict(module.named_parameters()) | dict(module.named_buffers())
    return [name for name, tensor in state.items() if tensor.is_inference()]


def test_a_model_that_was_quantized_under_it_takes_a_state_dict():
    model = network()
    with torch.inference_mode():
        int8 = fxq.quantize(model, [X], progress=False)
        inside = int8(X)
    assert made_under_inference(int8) == []
    int8.load_state_dict(int8.state_dict())
    assert torch.equal(int8(X), inside)
    assert torch.equal(fxq.quantize(model, [X], progress=False)(X), inside)


def test_calibration_goes_on_outside_and_its_state_loads():
    model = network()
    with torch.inference_mode():
        prepared = fxq.prepare(model, X)
        fxq.calibrate(prepared, [X[:2]], progress=False)
        batch = X * 1.0  # an inference tensor
    assert not any(tensor.is_inference() for tensor in prepared.state_dict().values())
    fxq.calibrate(prepared, [batch], progress=False)
    other = fxq.prepare(model, X)
    with torch.inference_mode():
        other.load_state_dict(prepared.state_dict())
    fxq.calibrate(other, [X], progress=False)
    simulated = fxq.convert(prepared, to="fake_quant")
    simulated(X).sum().backward()
    assert simulated.get_parameter("4.weight").grad is not None


def test_parameters_that_were_made_under_it():
    with torch.inference_mode():
        model = network()
    assert torch.equal(fxq.quantize(model, [X], progress=False)(X), fxq.quantize(network(), [X], progress=False)(X))
    assert made_under_inference(model)
