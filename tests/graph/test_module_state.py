"""A state of other names says where it differs; one that cannot be loaded changes nothing."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantError, StateError
from fxquant.graph.module_state import undone_on_error
from tests.sampling import one_of

X = ((torch.arange(2 * 3 * 6 * 6) * 67 % 257 - 128) / 64).reshape(2, 3, 6, 6)


def test_containers_keep_their_identity():
    class Held:
        def __init__(self) -> None:
            self.items = {"list": [1], "deque": deque([1]), "dict": {1: 1}, "set": {1}}
            self.__dict__.update(self.items)

    held = Held()

    @undone_on_error([held], ())
    def fail() -> None:
        held.list.append(2)
        held.deque.append(2)
        held.dict[2] = 2
        held.set.add(2)
        held.more = 1
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail()
    assert held.items == {"list": [1], "deque": deque([1]), "dict": {1: 1}, "set": {1}}
    assert all(vars(held)[name] is value for name, value in held.items.items())
    assert not hasattr(held, "more")


class Frozen(nn.Linear):
    """Of another class."""


def test_values_stay_where_they_are_and_classes_what_they_were():
    module = nn.Linear(2, 2)
    module.register_buffer("grows", torch.zeros(2))
    before = {name: (tensor, tensor.data_ptr(), tensor.clone()) for name, tensor in module.state_dict().items()}

    @undone_on_error([module], tuple(module.parameters()))
    def fail() -> None:
        module.weight.data.add_(1)
        module.grows.resize_(7).fill_(3)
        module._parameters["bias"] = nn.Parameter(torch.ones(2))
        module.__class__ = Frozen
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert type(module) is nn.Linear
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name][2])
        assert name == "grows" or tensor.data_ptr() == before[name][1]


class Own(nn.Module):
    """Kept whole: it has a way of its own to take a state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.loads: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.loads.append(1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4), Own(), nn.Linear(4, 5))
    )


def calibrated() -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(net().eval(), X, leaf_modules=(Own,)), [X], progress=False)


def trained() -> Any:
    qat = fxq.prepare_qat(net().train(), X, leaf_modules=(Own,))
    qat(X)
    qat.apply(fxq.disable_observer)
    return qat


FORMS: dict[str, Callable[[], Any]] = {
    "prepared": calibrated,
    "int8": lambda: fxq.convert(calibrated()),
    "int8, graph": lambda: fxq.convert(calibrated(), engine="graph"),
    "fake_quant": lambda: fxq.convert(calibrated(), to="fake_quant"),
    "reference": lambda: fxq.convert(calibrated(), to="reference"),
    "training": trained,
}
"""Each makes a model of its own."""


def changed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Another state of the same form: all floats are a little larger."""
    return {name: value * 1.25 if value.is_floating_point() else value.clone() for name, value in state.items()}


def spoilt(state: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """With a last tensor that cannot be taken, when all before it have been."""
    name = [each for each, value in state.items() if value.is_floating_point() and value.dim()][-1]
    bias = [each for each in state if each.endswith(".bias")][-1]  # of what is measured, some may be NaN, or missing
    if kind == "shape":
        state[name] = torch.zeros(7, 7)
    elif kind == "NaN":
        state[bias] = state[bias] * float("nan")
    elif kind == "missing":
        del state[bias]
    elif kind == "no tensor":
        state[name] = "text"  # type: ignore[assignment]
    else:
        state["another"] = torch.zeros(1)
    return state


@pytest.mark.parametrize(
    ("kind", "form", "assign"),
    one_of(
        4,
        [
            pytest.param(kind, form, assign, id=f"{form}-{kind}-{'assign' if assign else 'copy'}")
            for assign in (False, True)
            for form in FORMS
            for kind in ("shape", "NaN", "missing", "unexpected", "no tensor")
        ],
    ),
)
def test_a_state_that_cannot_be_loaded_changes_nothing(kind, form, assign):
    model = FORMS[form]()
    run = model.graph_module if form == "prepared" else model
    run.train(False)
    expected = run(X)
    run(X)
    before = copy.deepcopy(dict(model.state_dict()))
    places = {name: value.data_ptr() for name, value in run.named_parameters()}
    options = {"assign": True} if assign and form != "prepared" else {}
    bad = spoilt(changed(copy.deepcopy(before)), kind)
    with pytest.raises((RuntimeError, FxQuantError)):
        model.load_state_dict(bad, **options)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value, before[name]) or bool(value.isnan().any()) for name, value in after.items())
    assert {name: value.data_ptr() for name, value in run.named_parameters()} == places
    assert [module.loads for module in run.modules() if isinstance(module, Own)] == [[]]
    for _ in range(3):
        assert torch.equal(run(X), expected)
    model.load_state_dict(before)  # and a good one is taken afterwards
    assert torch.equal(run(X), expected)


def test_batch_norms_that_a_bad_state_would_freeze_stay_as_they_are():
    model, frozen = trained(), trained()
    state = spoilt(dict(frozen.apply(fxq.freeze_bn_stats).state_dict()), "shape")
    with pytest.raises(RuntimeError):
        model.load_state_dict(state)
    assert [type(module).__name__ for module in model.modules() if "BatchNorm" in type(module).__name__] == [
        "BatchNorm2d"
    ]


class Joined(nn.Module):
    """A join of values of very different ranges, and one of values of the same range, which stays int8."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(16, 4, 1)
        with torch.no_grad():
            self.large.weight.mul_(100)

    def forward(self, x):
        stacked = torch.stack([self.small(x), self.small(x)], 1).sum(1)
        return self.last(torch.sigmoid(torch.cat([self.small(x), self.large(x)], 1))), stacked


JOINED = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def joined() -> nn.Module:
    torch.manual_seed(0)
    return Joined().eval()


@pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
def test_a_state_with_joins_in_float_says_so_and_what_to_do(to: str) -> None:
    calibrated = fxq.calibrate(fxq.prepare(joined(), JOINED), [JOINED], progress=False)
    saved = fxq.convert(calibrated, to=to)
    shell = fxq.convert(fxq.prepare(joined(), JOINED), to=to, allow_uncalibrated=True)
    with pytest.raises(StateError) as caught:
        shell.load_state_dict(saved.state_dict())
    assert str(caught.value) == (
        "the saved model has float joins that are quantized here: calibration decides that by the ranges\n"
        "  at:       'cat'\n"
        "  got:      the state of a model that was calibrated on other data, or this one was not calibrated\n"
        "  expected: a model with the same calibration; without any, all joins are quantized\n"
        "  hint:     load the state of the calibrated Quantizer into the new one, and convert that; or fxq.save the "
        "model, which keeps the graph, too; or leave them in float by mapping.set_object_type(torch.cat, None)"
    )
    with pytest.raises(StateError, match="the saved model has quantized joins that are float here"):
        saved.load_state_dict(shell.state_dict())

    # What the hint says, in turn.
    fresh = fxq.prepare(joined(), JOINED)
    fresh.load_state_dict(calibrated.state_dict())
    rules = fxq.get_default_qconfig_mapping().set_object_type(torch.cat, None)
    for loaded in (
        fxq.convert(fresh, to=to),
        fxq.convert(fxq.prepare(joined(), JOINED, rules), to=to, allow_uncalibrated=True),
    ):
        loaded.load_state_dict(saved.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(loaded(JOINED), saved(JOINED), strict=True))


def test_other_differences_are_named_first_where_joins_differ_too() -> None:
    saved = fxq.convert(fxq.calibrate(fxq.prepare(joined(), JOINED), [JOINED], progress=False))
    shell = fxq.convert(fxq.prepare(joined(), JOINED), allow_uncalibrated=True)
    with pytest.raises(StateError, match="consume_prefix_in_state_dict_if_present"):
        shell.load_state_dict({f"module.{name}": value for name, value in saved.state_dict().items()})
    with pytest.raises(StateError, match="this is the state of a float model"):
        shell.load_state_dict(joined().state_dict())


@pytest.mark.parametrize("form", ["int8", "prepared", "training"])
def test_entries_that_the_model_does_not_have_are_named_and_the_hint_leaves_them_out(form: str) -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    prepared = fxq.calibrate(fxq.prepare(nn.Sequential(nn.Linear(4, 4)).eval(), x), [x], progress=False)
    model: Any = prepared if form == "prepared" else fxq.convert(prepared)
    if form == "training":
        model = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 4)), x)
    for name, at, got in (("foo", "the model itself", "foo"), ("head.weight", "'head'", "weight")):
        state = {**model.state_dict(), name: torch.ones(1)}
        with pytest.raises(StateError) as caught:
            model.load_state_dict(state)
        assert str(caught.value) == (
            "the state dict is that of another model, or of one that was quantized in another way\n"
            f"  at:       {at}\n"
            f"  got:      {got}\n"
            "  expected: nothing of that name\n"
            "  hint:     load_state_dict(state, strict=False) leaves out what the model does not have"
        )
        model.load_state_dict(state, strict=False)
