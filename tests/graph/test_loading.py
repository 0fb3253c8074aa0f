"""What is no state of a model is refused by the key, in every form of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import InputError

LARGE = [0.0, -0.1, math.inf, -math.inf, math.nan, 1e38, 1e-40]


def made(form: str, bits: int = 8) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval()
    x = torch.rand(4, 3, 4, 4)
    weight = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric", bits=bits)
    qconfig = fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight)
    if form == "QAT":
        training = fxq.prepare_qat(model, x)
        training(x)
        return training
    prepared = fxq.calibrate(fxq.prepare(model, x, qconfig), [x], progress=False)
    return prepared if form == "prepared" else fxq.convert(prepared, to=form)


def with_value(state: dict[str, Tensor], key: str, value: float) -> dict[str, Tensor]:
    changed = state[key].clone()
    changed.view(-1)[-1:] = value
    return {**state, key: changed}


def keys(state: dict[str, Tensor], *endings: str) -> list[str]:
    return [key for key in state if key.endswith(endings) and not key.startswith("calibration_statistics")]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("form", ["int8", "fake_quant", "reference", "prepared", "QAT"])
def test_a_good_state_is_taken_and_bad_values_are_named_by_key(form: str, strict: bool) -> None:
    model = made(form)
    state = model.state_dict()
    model.load_state_dict(state, strict=strict)
    cases = [(key, value) for key in keys(state, "scale") for value in LARGE]
    cases += [(key, value) for key in keys(state, "zero_point") for value in (-1000.0, 300.0)]
    cases += [(key, value) for key in keys(state, ".bias") for value in (math.nan, math.inf)]
    cases += [(key, math.nan) for key in keys(state, "min_val", "max_val")]
    assert len(cases) > 4
    for key, value in cases:
        with pytest.raises(InputError) as caught:
            model.load_state_dict(with_value(state, key, value), strict=strict)
        assert str(caught.value).splitlines()[1] == f"  at:       {key}"
    for key in keys(state, "scale", ".weight", ".bias", "min_val"):
        with pytest.raises(InputError, match=f"at: *{key}"):
            model.load_state_dict({**state, key: state[key].to(torch.complex64)}, strict=strict)
    model.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("form", ["int8", "reference"])
def test_weights_of_8_bits_are_none_of_4(form: str) -> None:
    eight, four = made(form), made(form, bits=4)
    state = eight.state_dict()
    with pytest.raises(InputError) as caught:
        four.load_state_dict(state)
    assert str(caught.value).splitlines()[0] == "a stored weight lies outside of its grid"
    assert "expected: -8 to 7, for int4 symmetric per channel (axis 0)" in str(caught.value)
    key = next(key for key in keys(state, "weight") if state[key].dtype == torch.int8)
    with pytest.raises(InputError, match=f"where a weight is stored\n  at: *{key}\n  got: *torch.float32"):
        eight.load_state_dict({**state, key: state[key].float()})


def test_zero_points_beyond_int32_are_refused() -> None:
    model = made("int8")
    state = model.state_dict()
    key = keys(state, "zero_point")[0]
    with pytest.raises(InputError, match="is no step of its grid"):
        model.load_state_dict({**state, key: torch.full_like(state[key], 2**32, dtype=torch.int64)})


def test_a_state_from_before_calibration_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    shell = fxq.convert(fxq.prepare(model, torch.rand(2, 4)), allow_uncalibrated=True)
    with pytest.raises(InputError, match=r"hint: *the state was saved before calibration"):
        shell.load_state_dict(shell.state_dict())


def test_tables_of_4_bits_are_loaded() -> None:
    model = nn.Sequential(nn.Embedding(6, 16)).eval()
    int8 = fxq.convert(fxq.prepare(model, torch.arange(6), fxq.float_qparams_weight_only_qconfig_4bit))
    int8.load_state_dict(int8.state_dict())


def test_a_learned_grid_may_lie_where_forward_puts_it_right() -> None:
    module = fxq.LearnableFakeQuantize(fxq.MovingAverageMinMaxObserver)
    state = module.state_dict()
    module.load_state_dict({**state, "scale": torch.tensor([-0.1])})
    with pytest.raises(InputError, match=r"at: *scale"):
        module.load_state_dict({**state, "scale": torch.tensor([math.nan])})
