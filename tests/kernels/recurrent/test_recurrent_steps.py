"""``fxquant::recurrent_steps``: values against float, rows that stop early, and arguments that do not fit."""

from __future__ import annotations

import importlib.util
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.conv.packing import pack_weight, zero_point_correction
from fxquant.kernels.recurrent.gates import GATES, GRU, LSTM, RELU, TANH, advance
from fxquant.kernels.recurrent.recurrent_steps import RecurrentStepsCall, recurrent_steps, reference

SPEC: Any = importlib.util.spec_from_file_location("calls", Path(__file__).parents[1] / "calls.py")
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)

NEAR = 0.05
"""Of values below 1: 8 bits of the states, whose products add up over a few steps."""
STEPS, ROWS, SIZE, OUTPUTS = 5, 3, 6, 4


def matrix(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-127, 128, (rows, columns), generator=generator, dtype=torch.int8)
    return weight, torch.rand(rows, generator=generator) * 0.004 + 0.001


def arguments(mode: int, projected: bool = False, measured: bool = True, counts: tuple[int, ...] = ()) -> Any:
    """Return a valid call, and its matrices as floats."""
    products, outputs = GATES[mode] * SIZE, OUTPUTS if projected else SIZE
    weight, scale = matrix(products, outputs, 1)
    onto, onto_scale = matrix(outputs, SIZE, 2)
    generator = torch.Generator().manual_seed(mode)
    state = torch.rand(ROWS, outputs, generator=generator) - 0.5
    call = RecurrentStepsCall(
        of_input=torch.randn(STEPS, ROWS, products, generator=generator),
        hidden=state,
        cell=torch.rand(ROWS, SIZE if mode == LSTM else 0, generator=generator),
        counts=list(counts),
        reverse=False,
        mode=mode,
        weight=pack_weight(weight),
        correction=zero_point_correction(weight, torch.uint8, 1),
        weight_scale=scale,
        bias=torch.randn(products, generator=generator) * 0.1,
        projection=pack_weight(onto) if projected else None,
        projection_correction=zero_point_correction(onto, torch.uint8, 1) if projected else None,
        projection_scale=onto_scale if projected else None,
        measured=measured,
        scale=1 / 64,
        zero_point=0 if measured else 120,
        eps=1e-30,
        quant_min=0,
        quant_max=255,
        middle=None,
        dtype=torch.uint8,
    )
    return call, weight * scale.unsqueeze(1), onto * onto_scale.unsqueeze(1) if projected else None


def given(call: RecurrentStepsCall) -> list[Any]:
    return [getattr(call, field.name) for field in fields(call)]


def in_float(call: RecurrentStepsCall, weight: Tensor, onto: Tensor | None) -> list[Tensor]:
    hidden, cell, outputs = call.hidden, call.cell, torch.zeros(STEPS, ROWS, call.hidden.shape[1])
    for t in reversed(range(STEPS)) if call.reverse else range(STEPS):
        count = call.counts[t] if call.counts else ROWS
        now, next_cell = advance(call.mode, call.of_input[t], hidden @ weight.t() + call.bias, hidden, cell)
        now = now if onto is None else now @ onto.t()
        outputs[t, :count] = now[:count]
        hidden, cell = torch.cat([now[:count], hidden[count:]]), torch.cat([next_cell[:count], cell[count:]])
    return [outputs, hidden, cell]


CALLS = {
    "lstm": (LSTM, False, True, ()),
    "projected": (LSTM, True, True, ()),
    "counts": (LSTM, False, True, (3, 3, 2, 1, 0)),
    "gru": (GRU, False, True, ()),
    "tanh": (TANH, False, False, (3, 1, 1, 1, 1)),
    "relu": (RELU, False, True, ()),
    "known qparams": (LSTM, True, False, ()),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_values_are_near_to_those_of_floats(name, reverse):
    call, weight, onto = arguments(*CALLS[name])
    call.reverse = reverse
    for near, exact in zip(recurrent_steps(*given(call)), in_float(call, weight, onto), strict=True):
        assert near.shape == exact.shape
        assert (near - exact).abs().max() < NEAR * max(float(exact.abs().max()), 1.0) if exact.numel() else True


def moved(call: RecurrentStepsCall, device: str) -> list[Any]:
    return [value.to(device) if isinstance(value, Tensor) else value for value in given(call)]


@pytest.mark.parametrize("name", CALLS)
def test_the_operator_is_its_reference(device, name):
    call, *_ = arguments(*CALLS[name])
    before = [value.clone() if isinstance(value, Tensor) else value for value in given(call)]
    assert all(map(torch.equal, recurrent_steps(*moved(call, device)), reference(*moved(call, device))))
    assert all(torch.equal(a, b) for a, b in zip(given(call), before, strict=True) if isinstance(a, Tensor))


def test_random_calls_equal_the_reference(device):
    """Sizes around panels, strips and stretches; rows that end; int8; strides of all kinds."""
    for seed in range(40):
        call = made.ordered("recurrent_steps", made.CALLS["recurrent_steps"](made.Maker(seed, lambda x: x.to(device))))
        found, expected = recurrent_steps(*call.values()), reference(*call.values())
        assert all(map(torch.equal, found, expected)), seed


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("mode", [LSTM, GRU, TANH, RELU])
def test_states_and_products_that_are_no_numbers(device, mode, value):
    call, *_ = arguments(mode)
    call.hidden[0, 1] = value
    call.of_input[1, 1, 2] = value
    call.of_input[2, 2] = -value
    results = zip(recurrent_steps(*moved(call, device)), reference(*moved(call, device)), strict=True)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in results)


def test_opcheck(device):
    for seed in (1, 2, 3):
        call = made.ordered("recurrent_steps", made.CALLS["recurrent_steps"](made.Maker(seed, lambda x: x.to(device))))
        torch.library.opcheck(torch.ops.fxquant.recurrent_steps.default, tuple(call.values()))


def test_no_steps_and_no_rows():
    call, *_ = arguments(LSTM)
    none = replace(call, of_input=call.of_input[:0])
    y, hidden, cell = recurrent_steps(*given(none))
    assert y.shape == (0, ROWS, SIZE)
    assert torch.equal(hidden, call.hidden)
    assert torch.equal(cell, call.cell)
    nobody = replace(call, of_input=call.of_input[:, :0], hidden=call.hidden[:0], cell=call.cell[:0])
    assert [tuple(each.shape) for each in recurrent_steps(*given(nobody))] == [(STEPS, 0, SIZE), (0, SIZE), (0, SIZE)]


def test_rows_that_are_measured_alone():
    """A row that takes no part must not widen the range of the others."""
    call, *_ = arguments(LSTM, counts=(2, 2, 2, 2, 2))
    loud = replace(call, hidden=torch.cat([call.hidden[:2], torch.full((1, SIZE), 1e6)]))
    assert torch.equal(recurrent_steps(*given(call))[0], recurrent_steps(*given(loud))[0])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "of_input dims": ({"of_input": torch.zeros(5, 3)}, "of_input has the wrong shape"),
    "of_input dtype": ({"of_input": torch.zeros(5, 3, 24, dtype=torch.float64)}, "of_input has the wrong dtype"),
    "of_input size": ({"of_input": torch.zeros(5, 3, 20)}, "of_input has the wrong shape"),
    "hidden rows": ({"hidden": torch.zeros(2, 6)}, "hidden has the wrong shape"),
    "cell": ({"cell": torch.zeros(3, 5)}, "cell has the wrong shape"),
    "counts": ({"counts": [3, 2]}, "counts is out of range"),
    "counts rise": ({"counts": [1, 2, 2, 2, 2]}, "counts is out of range"),
    "counts below 0": ({"counts": [1, 0, 0, 0, -1]}, "counts is out of range"),
    "mode": ({"mode": 4}, "mode is out of range"),
    "weight dtype": ({"weight": torch.zeros(4, 16, 4, dtype=torch.uint8)}, "weight has the wrong dtype"),
    "weight": ({"weight": torch.zeros(1, 16, 4, dtype=torch.int8)}, "weight has the wrong shape"),
    "correction": ({"correction": torch.zeros(3, dtype=torch.int32)}, "correction has the wrong shape"),
    "weight_scale": ({"weight_scale": torch.zeros(3)}, "weight_scale has the wrong shape"),
    "bias": ({"bias": torch.zeros(3)}, "bias has the wrong shape"),
    "projection": ({"projection_scale": torch.zeros(6)}, "projection is not whole"),
    "dtype": ({"dtype": torch.int32}, "dtype has the wrong dtype"),
    "limits": ({"quant_max": 256}, "quant_min and quant_max do not fit"),
    "scale": ({"measured": False, "scale": 0.0}, "scale is unusable"),
    "zero_point": ({"measured": False, "zero_point": 256}, "zero_point is out of range"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_do_not_fit(name):
    call, *_ = arguments(LSTM)
    changed, message = WRONG[name]
    for run in (recurrent_steps, reference):
        with pytest.raises((KernelError, RuntimeError), match=message):
            run(*given(replace(call, **changed)))
