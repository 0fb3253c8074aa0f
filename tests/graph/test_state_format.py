"""A state dict says what it was quantized to; where it does not, it loads as any does."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import StateError
from fxquant.graph.state_format import FORMAT, KEY, schemes_of

X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 5)).eval()


def bits(weight: int, activation: int = 8) -> fxq.QConfig:
    return fxq.QConfig(
        activation=fxq.MinMaxObserver.with_args(bits=activation),
        weight=fxq.PerChannelMinMaxObserver.with_args(bits=weight, dtype=torch.int8, qscheme="per_channel_symmetric"),
    )


def prepared(weight: int = 8, activation: int = 8) -> Any:
    return fxq.calibrate(fxq.prepare(net(), X, bits(weight, activation)), [X], progress=False)


def shell(form: str, weight: int = 8, activation: int = 8) -> Any:
    return fxq.convert(fxq.prepare(net(), X, bits(weight, activation)), to=form, allow_uncalibrated=True)


EVERY_WAY = pytest.mark.parametrize(
    ("form", "arguments"),
    [
        pytest.param(form, arguments, marks=pytest.mark.slow if arguments and form != "int8" else ())
        for form in ("int8", "reference", "fake_quant")
        for arguments in ({}, {"strict": False}, {"assign": True})
    ],
    ids=str,
)


def saved(state: Any) -> Any:
    """Through a file, as users keep it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def refused(model: Any, state: Any, **arguments: Any) -> str:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StateError) as caught:
        model.load_state_dict(state, **arguments)
    now = model.state_dict()
    assert all(torch.equal(before[name], now[name]) or before[name].isnan().any() for name in before)
    return str(caught.value)


@EVERY_WAY
def test_other_bits_are_refused_by_the_first_module(form: str, arguments: Any) -> None:
    state = saved(fxq.convert(prepared(), to=form).state_dict())
    text = refused(shell(form, weight=4), state, **arguments)
    assert "the state dict is of a model that was quantized in another way" in text
    assert "at:       '0" in text
    assert ", and 2 more" in text
    assert ": int8 symmetric per channel (axis 0)" in text
    assert "expected: " in text.replace("expected: weight: int4", "expected: ")
    assert "uint8 affine per tensor" in refused(shell(form, activation=6), state, **arguments)
    few = saved(fxq.convert(prepared(weight=4), to=form).state_dict())
    assert ": int4 symmetric per channel (axis 0)" in refused(shell(form), few, **arguments)


@EVERY_WAY
def test_the_same_configuration_loads(form: str, arguments: Any) -> None:
    model = fxq.convert(prepared(), to=form)
    state = saved(model.state_dict())
    assert state._metadata[""][KEY]["format"] == FORMAT
    for kept in (state, dict(state), OrderedDict(state), safetensors.torch.load(safetensors.torch.save(dict(state)))):
        again = shell(form)
        again.load_state_dict(kept, **arguments)
        assert torch.equal(again(X), model(X))


def test_what_says_nothing_loads_as_before() -> None:
    few, model = dict(fxq.convert(prepared(weight=4)).state_dict()), shell("int8")
    model.load_state_dict(few)  # its integers fit into 8 bits: nobody can know
    assert torch.equal(model(X), fxq.convert(prepared(weight=4))(X))


def test_inside_of_other_modules() -> None:
    eight, four = fxq.convert(prepared()), shell("int8", weight=4)
    state = saved(nn.DataParallel(eight).state_dict())
    assert "'0'" in refused(nn.DataParallel(four), state)
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert "'0'" in refused(four, state)
    again = shell("int8")
    again.load_state_dict(state)
    assert torch.equal(again(X), eight(X))

    class Whole(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    whole = Whole(shell("int8"))
    whole.load_state_dict(Whole(eight).state_dict())
    assert torch.equal(whole.body(X), eight(X))
    with pytest.raises(StateError, match="quantized in another way"):
        Whole(four).load_state_dict(Whole(eight).state_dict())


def test_a_quantizer_and_a_model_in_training() -> None:
    state = saved(prepared().state_dict())
    again = fxq.prepare(net(), X, bits(8))
    again.load_state_dict(state)
    assert torch.equal(fxq.convert(again)(X), fxq.convert(prepared())(X))
    other = fxq.prepare(net(), X, bits(8, activation=6))
    with pytest.raises(StateError, match=r"got: +values: uint8 affine"):
        other.load_state_dict(state)
    other.load_state_dict(dict(state))
    qat = fxq.prepare_qat(net().train(), X, fxq.get_lsq_qconfig(weight_bits=4))
    assert "expected: values: int4" in refused(
        qat, fxq.prepare_qat(net().train(), X, fxq.get_lsq_qconfig()).state_dict()
    )


def test_ranges_of_tokens_are_other_than_those_of_whole_inputs() -> None:
    per_token = fxq.convert(fxq.prepare(net(), X, fxq.default_per_token_qconfig))
    message = refused(fxq.convert(fxq.prepare(net(), X, fxq.default_dynamic_qconfig)), per_token.state_dict())
    assert "got:      x: uint8 affine per token\n  expected: x: uint8 affine per tensor\n" in message


def test_a_newer_format() -> None:
    model = fxq.convert(prepared())
    state = model.state_dict()
    state._metadata[""][KEY]["format"] = FORMAT + 1
    assert "the state dict is of a newer format" in refused(model, state)


def test_float_models_say_nothing() -> None:
    assert KEY not in prepared().graph_module.state_dict()._metadata[""]
    assert schemes_of(net()) == {}
