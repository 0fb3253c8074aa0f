"""What no entry of a model can be is refused by the key, in every form of it: kind, shape, values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import StateError
from tests.sampling import one_of

FORMS = ["int8", "fake_quant", "reference", "prepared", "QAT"]
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
@pytest.mark.parametrize("form", one_of(3, ["int8", "fake_quant", "reference", "prepared", "QAT"]))
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
        with pytest.raises(StateError) as caught:
            model.load_state_dict(with_value(state, key, value), strict=strict)
        assert str(caught.value).splitlines()[1] == f"  at:       {key}"
    for key in keys(state, "scale", ".weight", ".bias", "min_val"):
        with pytest.raises(StateError, match=f"at: *{key}"):
            model.load_state_dict({**state, key: state[key].to(torch.complex64)}, strict=strict)
        with pytest.raises(StateError, match=f"(?s)no dense tensor.*at: *{key}.*sparse_coo"):
            model.load_state_dict({**state, key: state[key].to_sparse()}, strict=strict)
    model.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("form", ["int8", "reference"])
def test_weights_of_8_bits_are_none_of_4(form: str) -> None:
    eight, four = made(form), made(form, bits=4)
    state = dict(eight.state_dict())  # a plain dict does not say what its schemes are
    with pytest.raises(StateError) as caught:
        four.load_state_dict(state)
    assert str(caught.value).splitlines()[0] == "a quantized weight lies outside of its range"
    assert "expected: -8 to 7, for int4 symmetric per channel (axis 0)" in str(caught.value)
    key = next(key for key in keys(state, "weight") if state[key].dtype == torch.int8)
    with pytest.raises(StateError, match=f"where quantized values are stored\n  at: *{key}\n  got: *torch.int64"):
        eight.load_state_dict({**state, key: state[key].long()})


def test_zero_points_beyond_int32_are_refused() -> None:
    model = made("int8")
    state = model.state_dict()
    key = keys(state, "zero_point")[0]
    for assign in (False, True):
        with pytest.raises(StateError, match="an entry of the state is too large"):
            model.load_state_dict({**state, key: torch.full_like(state[key], 2**32, dtype=torch.int64)}, assign=assign)


def test_a_state_from_before_calibration_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    shell = fxq.convert(fxq.prepare(model, torch.rand(2, 4)), allow_uncalibrated=True)
    with pytest.raises(StateError, match=r"hint: *the state was saved before calibration"):
        shell.load_state_dict(shell.state_dict())


def test_tables_of_4_bits_are_loaded() -> None:
    model = nn.Sequential(nn.Embedding(6, 16)).eval()
    int8 = fxq.convert(fxq.prepare(model, torch.arange(6), fxq.float_qparams_weight_only_qconfig_4bit))
    int8.load_state_dict(int8.state_dict())


def test_a_learned_grid_may_lie_where_forward_puts_it_right() -> None:
    module = fxq.LearnableFakeQuantize(fxq.MovingAverageMinMaxObserver)
    state = module.state_dict()
    module.load_state_dict({**state, "scale": torch.tensor([-0.1])})
    with pytest.raises(StateError, match=r"at: *scale"):
        module.load_state_dict({**state, "scale": torch.tensor([math.nan])})


KINDS = {
    "bools": [torch.bool],
    "integers": [torch.uint8, torch.int32, torch.int64],
    "float values": [torch.float16, torch.bfloat16, torch.float64],
    "complex numbers": [torch.complex64],
}


def kind_of(value: Tensor) -> str:
    if value.dtype == torch.bool:
        return "bools"
    return "complex numbers" if value.is_complex() else "float values" if value.is_floating_point() else "integers"


class Masked(nn.Module):
    """A batch norm that stays one, a mask, and buffers of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("shift", torch.tensor([-math.inf, 0, 0, 0]))
        self.register_buffer("index", torch.tensor([3, 2, 1, 0], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(torch.relu(self.fc(x)))
        return (y.masked_fill(self.mask, 0.0) + self.shift)[:, self.index]


INPUT = torch.linspace(-2, 2, 32).reshape(8, 4)


def masked(form: str) -> Any:
    torch.manual_seed(0)
    model = Masked().eval()
    if form == "QAT":
        training = fxq.prepare_qat(model.train(), INPUT)
        training(INPUT)
        return training.eval()
    prepared = fxq.calibrate(fxq.prepare(model, INPUT), [INPUT], progress=False)
    return prepared if form == "prepared" else fxq.convert(prepared, to=form)


def run(model: Any) -> Tensor:
    found: Tensor = (model.graph_module if isinstance(model, fxq.Quantizer) else model)(INPUT)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_another_kind_are_refused_by_the_key(form: str) -> None:
    model = masked(form)
    state, expected = dict(model.state_dict()), run(model)
    assert {kind_of(value) for value in state.values()} == {"bools", "integers", "float values"}
    for key, value in state.items():
        for kind in KINDS.keys() - {kind_of(value)}:
            for dtype in KINDS[kind]:
                if (value.dtype, dtype) == (torch.bool, torch.uint8):
                    continue  # masks were uint8 once
                with pytest.raises(StateError) as caught:
                    model.load_state_dict({**state, key: value.nan_to_num().to(dtype)})
                lines = str(caught.value).splitlines()
                what = f"the state holds {kind} where the model has {kind_of(value)}"
                assert lines[:2] == [what, f"  at:       {key}"]
    assert torch.equal(run(model), expected)


@pytest.mark.parametrize("form", FORMS)
def test_other_dtypes_of_the_same_kind_are_taken(form: str) -> None:
    model = masked(form)
    state = dict(model.state_dict())
    other = {torch.float32: torch.float64, torch.bool: torch.uint8}
    wider = {key: value.to(other.get(value.dtype, value.dtype)) for key, value in state.items()}
    wider |= {key: value.long() for key, value in state.items() if key.endswith(("zero_point", "index", "tracked"))}
    expected = run(model)
    model.load_state_dict(wider)
    assert torch.equal(run(model), expected)
    for dtype in (torch.float16, torch.bfloat16):
        halves = {
            key: value.to(dtype) if value.is_floating_point() and not key.endswith("scale") else value
            for key, value in state.items()
        }
        model.load_state_dict(halves)


def test_a_value_that_the_dtype_of_the_model_does_not_hold_is_not_finite() -> None:
    model = masked("int8")
    state = model.state_dict()
    with pytest.raises(StateError) as caught:
        model.load_state_dict({**state, "fc.bias": torch.full((4,), 1e60, dtype=torch.float64)})
    assert str(caught.value) == (
        "the state holds values that are not finite\n"
        "  at:       fc.bias\n"
        "  got:      1e+60, and 3 more of 4\n"
        "  expected: finite float32\n"
        "  hint:     the file may be damaged, or of a model that was quantized otherwise: convert as it was, then load"
    )
    with pytest.raises(StateError, match=r"is too large\n  at:       index\n  got:      1\.09951e\+12\n"):
        model.load_state_dict({**state, "index": torch.tensor([2**40, 2, 1, 0])})
    prepared = masked("prepared")
    state = prepared.state_dict()
    for key in [*keys(state, "min_val"), "fc.weight"]:
        with pytest.raises(StateError, match=f"at:       {key}"):
            prepared.load_state_dict({**state, key: torch.full_like(state[key], -1e60, dtype=torch.float64)})


@pytest.mark.parametrize("form", ["prepared", "QAT", "int8"])
def test_statistics_of_batch_norms_are_finite_and_no_variance_is_negative(form: str) -> None:
    model = masked(form)
    state = dict(model.state_dict())
    means, variances = (keys(state, name) for name in ("running_mean", "running_var"))
    assert form == "int8" or (means and variances)
    for key in (*means, *variances):
        for value in (math.inf, -math.inf, math.nan):
            with pytest.raises(StateError, match=f"not finite\n  at:       {key}"):
                model.load_state_dict(with_value(state, key, value))
    for key in variances:
        with pytest.raises(StateError, match=f"a variance is negative\n  at:       {key}\n  got:      -0.5\n"):
            model.load_state_dict(with_value(state, key, -0.5))
        model.load_state_dict(with_value(state, key, 0.0))  # of a channel that is always the same


@pytest.mark.parametrize("assign", [False, True])
def test_what_is_no_tensor_with_values_is_refused_by_the_key(assign: bool) -> None:
    model = masked("int8")
    state, expected = dict(model.state_dict()), run(model)
    given: Mapping[str, tuple[Any, str]] = {
        "None": (None, "None"),
        "str": ("a", "'a'"),
        "array": (state["fc.weight"].numpy(), "numpy.ndarray int8[4, 4]"),
    }
    for value, got in given.values():
        with pytest.raises(StateError) as caught:
            model.load_state_dict({**state, "fc.weight": value}, assign=assign)
        lines = str(caught.value).splitlines()
        assert lines[:4] == [
            "an entry of the state is no tensor",
            "  at:       fc.weight",
            f"  got:      {got}",
            "  expected: int8[4, 4]",
        ]
    assert lines[4] == "  hint:     torch.from_numpy(array) makes a tensor"
    for key in state:
        with pytest.raises(StateError, match=f"on the meta device, where tensors hold no values\n  at:       {key}\n"):
            model.load_state_dict({**state, key: state[key].to("meta")}, assign=assign)
        other = torch.cat([state[key].reshape(-1)] * 2)
        with pytest.raises(StateError) as caught:
            model.load_state_dict({**state, key: other}, assign=assign)
        assert str(caught.value).splitlines()[:2] == ["an entry of the state has another shape", f"  at:       {key}"]
    assert torch.equal(run(model), expected)


@pytest.mark.parametrize("form", ["prepared", "QAT"])
def test_entries_of_another_shape_are_named(form: str) -> None:
    model = masked(form)
    state = dict(model.state_dict())
    for key in ("fc.bias", *keys(state, "nonfinite_count", "eps")):
        with pytest.raises(StateError) as caught:
            model.load_state_dict({**state, key: torch.zeros((9, 9), dtype=state[key].dtype)})
        assert str(caught.value).splitlines()[:2] == ["an entry of the state has another shape", f"  at:       {key}"]


def test_a_module_that_holds_a_quantized_one_refuses_the_same() -> None:
    outer = nn.ModuleDict({"inner": masked("int8")})
    state = dict(outer.state_dict())
    with pytest.raises(StateError, match=r"bools where the model has float values\n  at:       inner\.fc\.x_scale"):
        outer.load_state_dict({**state, "inner.fc.x_scale": torch.tensor([True])})


def test_single_modules_refuse_other_kinds() -> None:
    fake_quant = fxq.FakeQuantize()
    for module, key in ((fake_quant, "scale"), (fake_quant, "zero_point"), (fxq.MinMaxObserver(), "min_val")):
        state = module.state_dict()
        with pytest.raises(StateError, match=f"the state holds bools where .*\n  at:       {key}\n"):
            module.load_state_dict({**state, key: state[key].bool()})


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
