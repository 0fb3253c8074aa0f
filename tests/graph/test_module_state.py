"""What is no state of a model is refused by the key, in every form of it."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantError, InputError, StateError
from fxquant.graph.module_state import undone_on_error
from tests.sampling import one_of

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
        with pytest.raises(InputError, match=f"(?s)no dense tensor.*at: *{key}.*sparse_coo"):
            model.load_state_dict({**state, key: state[key].to_sparse()}, strict=strict)
    model.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("form", ["int8", "reference"])
def test_weights_of_8_bits_are_none_of_4(form: str) -> None:
    eight, four = made(form), made(form, bits=4)
    state = dict(eight.state_dict())  # a plain dict does not say what its schemes are
    with pytest.raises(InputError) as caught:
        four.load_state_dict(state)
    assert str(caught.value).splitlines()[0] == "a quantized weight lies outside of its range"
    assert "expected: -8 to 7, for int4 symmetric per channel (axis 0)" in str(caught.value)
    key = next(key for key in keys(state, "weight") if state[key].dtype == torch.int8)
    with pytest.raises(InputError, match=f"where a weight is stored\n  at: *{key}\n  got: *torch.float32"):
        eight.load_state_dict({**state, key: state[key].float()})


def test_zero_points_beyond_int32_are_refused() -> None:
    model = made("int8")
    state = model.state_dict()
    key = keys(state, "zero_point")[0]
    with pytest.raises(InputError, match="is no quantized value"):
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


@pytest.mark.parametrize("form", ["int8", "reference", "fake_quant"])
def test_other_dtypes_of_qparams_are_cast_where_a_state_is_assigned(form):
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    prepared = fxq.prepare(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval(), x)
    model = fxq.convert(fxq.calibrate(prepared, [x], progress=False), to=form)
    wanted = model(x)
    state = {
        name: value.double() if name.endswith("scale") else value.long() if name.endswith("zero_point") else value
        for name, value in model.state_dict().items()
    }
    assert {value.dtype for value in state.values()} >= {torch.float64, torch.int64}
    model.load_state_dict(state, assign=True)
    assert {value.dtype for value in model.state_dict().values()}.isdisjoint({torch.float64, torch.int64})
    assert torch.equal(model(x), wanted)
