"""Names, arguments, attributes, states: those of ``torch.ao.quantization``, class by class, but for what is listed."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import fake_quantize as peer
from torch.ao.quantization import observer as peer_observers
from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize

from fxquant import fake_quantize, observers
from fxquant.errors import SpecError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch.ao")

CLASSES: dict[str, tuple[type, type]] = {
    name: (getattr(fake_quantize, name), getattr(peer, name))
    for name in ("FakeQuantizeBase", "FakeQuantize", "FixedQParamsFakeQuantize", "FusedMovingAvgObsFakeQuantize")
} | {"_LearnableFakeQuantize": (fake_quantize._LearnableFakeQuantize, _LearnableFakeQuantize)}
PRESETS = [name for name in peer.__all__ if name.startswith(("default_", "fused_"))]

MORE_STATE = {"activation_post_process.nonfinite_count", "activation_post_process.counts"}
"""How many values were left out of a range; the bins of our histogram."""
LESS_STATE = {"activation_post_process.histogram"}
"""Theirs, which is read where a state has it."""
OTHER_DEFAULTS = {("_LearnableFakeQuantize", "observer")}
"""Has a default here."""
OTHER_ATTRIBUTES = {
    "dtype": "ours name the plain integers: dtypes of torch's own quantization are going away",
}
OBSERVER_ATTRIBUTES = {
    "has_customized_qrange": "the scheme says so",
    "with_callable_args": "for dtypes that are found out later",
    "histogram": "counts here",
    "upsample_rate": "nothing is resampled",
    "dst_nbins": "the same",
    "reset_histogram": "reset_min_max_vals does it",
}


def made(name: str) -> tuple[Any, Any]:
    if name == "_LearnableFakeQuantize":
        return fake_quantize._LearnableFakeQuantize(observers.MovingAverageMinMaxObserver), _LearnableFakeQuantize(
            peer_observers.MovingAverageMinMaxObserver
        )
    return getattr(fake_quantize, name)(), getattr(peer, name)()


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if not isinstance(value, (Tensor, nn.Module))}


def layout(module: nn.Module) -> dict[str, Any]:
    return {name: (tuple(value.shape), value.dtype) for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", CLASSES)
def test_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(kind).parameters for kind in CLASSES[name])
    assert list(ours) == list(theirs)
    for argument, parameter in theirs.items():
        assert ours[argument].kind == parameter.kind
        if argument != "observer":  # their default is their class of the same name
            assert ours[argument].default == parameter.default
        elif (name, argument) not in OTHER_DEFAULTS and parameter.default is not parameter.empty:
            assert ours[argument].default.__name__ == parameter.default.__name__


@pytest.mark.parametrize("name", CLASSES)
def test_methods_and_their_arguments(name: str) -> None:
    ours, theirs = CLASSES[name]
    assert public(theirs) - public(ours) == set()
    for method in public(theirs) - public(nn.Module) - {"with_args"}:
        expected, mine = getattr(theirs, method), getattr(ours, method)
        if callable(expected) and method != "calculate_qparams":
            assert list(inspect.signature(mine).parameters) == list(inspect.signature(expected).parameters), method


@pytest.mark.parametrize("name", [*PRESETS, "_LearnableFakeQuantize"])
def test_attributes_and_buffers(name: str) -> None:
    ours, theirs = made(name)
    mine, right = plain_attributes(ours), plain_attributes(theirs)
    assert right.keys() - mine.keys() == set()
    for attribute, value in right.items():
        if attribute not in OTHER_ATTRIBUTES:
            assert mine[attribute] == value, attribute
    assert public(theirs.activation_post_process) - public(ours.activation_post_process) <= OBSERVER_ATTRIBUTES.keys()
    for attribute in ("quant_min", "quant_max", "qscheme", "is_dynamic", "averaging_constant", "reduce_range"):
        if hasattr(theirs.activation_post_process, attribute):
            assert getattr(ours.activation_post_process, attribute) == getattr(
                theirs.activation_post_process, attribute
            )
    assert {n for n, _ in ours.named_parameters()} == {n for n, _ in theirs.named_parameters()}


@pytest.mark.parametrize("name", [*PRESETS, "_LearnableFakeQuantize"])
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_states(name: str, used: bool) -> None:
    """Keys, shapes, dtypes; each is loaded, and what comes out then is the same."""
    ours, theirs = made(name)
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    if used:
        ours(x), theirs(x)
    mine, right = layout(ours), layout(theirs)
    assert mine.keys() - right.keys() <= MORE_STATE
    assert right.keys() - mine.keys() <= LESS_STATE
    assert all(mine[key] == right[key] for key in right.keys() - LESS_STATE)
    fresh, _ = made(name)
    fresh.load_state_dict(theirs.state_dict())
    assert all(torch.equal(fresh.state_dict()[key], theirs.state_dict()[key]) for key in right.keys() - LESS_STATE)
    if used:
        fresh.disable_observer(), theirs.disable_observer()
        assert torch.equal(fresh(2 * x), theirs(2 * x))


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_state_that_lacks_a_grid_is_told_of(used: bool) -> None:
    """Strictly, it is missing; otherwise the grid stays. The shape of theirs is taken over per channel."""
    ours, theirs = made("default_per_channel_weight_fake_quant")
    if used:
        theirs(torch.randn(6, 10))
    state = theirs.state_dict()
    del state["zero_point"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"zero_point"'):
        ours.load_state_dict(state)
    fresh, _ = made("default_per_channel_weight_fake_quant")
    assert fresh.load_state_dict(state, strict=False).missing_keys == ["zero_point"]
    assert fresh.scale.shape == fresh.zero_point.shape == state["scale"].shape


def test_a_histogram_of_theirs_goes_on_in_our_bins() -> None:
    ours, theirs = made("default_histogram_fake_quant")
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) - 0.5
    theirs(x)
    ours.load_state_dict(theirs.state_dict())
    right, _ = made("default_histogram_fake_quant")
    right(x)
    mine, expected = ours.activation_post_process, right.activation_post_process
    assert mine.counts.sum() == expected.counts.sum() == len(x)
    shift = (mine.counts.cumsum(0) - expected.counts.cumsum(0)).abs().max()
    assert shift <= 2 * expected.counts.max()  # a bin of theirs lies across two or three of ours
    for low, other in zip(mine.chosen_range(), expected.chosen_range(), strict=True):
        torch.testing.assert_close(low, other, rtol=0.05, atol=0.0)


@pytest.mark.parametrize("value", [0.0, 3.0, -0.25])
def test_a_histogram_of_theirs_that_saw_one_value(value: float) -> None:
    ours, theirs = made("default_histogram_fake_quant")
    theirs(torch.full((5,), value))
    ours.load_state_dict(theirs.state_dict())
    right, _ = made("default_histogram_fake_quant")
    right(torch.full((5,), value))
    assert torch.equal(ours.activation_post_process.counts, right.activation_post_process.counts)


LIMITS = {
    "by the module": lambda quant_min, quant_max: fake_quantize.FakeQuantize.with_args(
        observer=observers.MinMaxObserver, dtype=torch.uint8, quant_min=quant_min, quant_max=quant_max
    ),
    "by the observer": lambda quant_min, quant_max: fake_quantize.FakeQuantize.with_args(
        observer=observers.MinMaxObserver.with_args(dtype=torch.uint8), quant_min=quant_min, quant_max=quant_max
    ),
    "by functools.partial": lambda quant_min, quant_max: fake_quantize.FakeQuantize.with_args(
        observer=functools.partial(observers.MinMaxObserver, dtype=torch.uint8),
        quant_min=quant_min,
        quant_max=quant_max,
    ),
    "by default": lambda quant_min, quant_max: fake_quantize.FakeQuantize.with_args(
        quant_min=quant_min, quant_max=quant_max
    ),
    "fused": lambda quant_min, quant_max: fake_quantize.FusedMovingAvgObsFakeQuantize.with_args(
        observer=observers.MovingAverageMinMaxObserver.with_args(dtype=torch.uint8),
        quant_min=quant_min,
        quant_max=quant_max,
    ),
    "learnable": lambda quant_min, quant_max: fake_quantize.LearnableFakeQuantize.with_args(
        observer=observers.MinMaxObserver.with_args(dtype=torch.uint8), quant_min=quant_min, quant_max=quant_max
    ),
}


@pytest.mark.parametrize("said", LIMITS)
def test_limits_are_checked_against_the_dtype_wherever_it_is_said(said: str) -> None:
    assert LIMITS[said](0, 200)().quant_max == 200
    for limits in ((-1, 255), (0, 256)):
        with pytest.raises(SpecError) as caught:
            LIMITS[said](*limits)()
        assert "quant_min and quant_max do not fit an unsigned integer of 8 bits" in str(caught.value)
        assert str(list(limits)) in str(caught.value)


def test_one_limit_alone_counts() -> None:
    """torch.ao forgets it."""
    assert fake_quantize.FakeQuantize(quant_max=15).quant_max == 15
    assert fake_quantize.FakeQuantize(quant_min=3).quant_min == 3


def test_an_argument_that_nobody_takes_is_named() -> None:
    for observer in (observers.MovingAverageMinMaxObserver, observers.MovingAverageMinMaxObserver.with_args(bits=4)):
        for kind in (fake_quantize.FakeQuantize, fake_quantize.LearnableFakeQuantize):
            with pytest.raises(SpecError) as caught:
                kind(observer, averaging_constnt=0.1)
            assert "MovingAverageMinMaxObserver takes no argument 'averaging_constnt'" in str(caught.value)
            assert "did you mean 'averaging_constant'?" in str(caught.value)
