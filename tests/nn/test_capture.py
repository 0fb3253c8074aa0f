"""``torch.export`` and ``torch.compile`` of converted models: before and after the first run, with a dynamic batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError
from fxquant.nn.linear import QuantizedDynamicLinear
from tests.sampling import one_of

IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


class Residual(nn.Module):
    """Two convolutions beside a shortcut, then a head, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.pool = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.MaxPool2d(2)
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.average, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(x))))
        x = F.relu(x + self.second(F.relu(self.first(x))))
        return self.head(self.average(x).flatten(1))


class Inverted(nn.Module):
    """An inverted residual with a gate of its channel means, as in a MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.depthwise = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite, self.narrow = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(8, 3, 1)
        nn.init.ones_(self.squeeze.bias)  # type: ignore[arg-type]  # above 0, where a ReLU lets it through

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.depthwise(F.relu6(self.widen(x))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return (x + self.narrow(y * gate)).mean((2, 3))


class Encoder(nn.Module):
    """A transformer layer on a table of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.table(x)).mean(1))


class Branches(nn.Module):
    """Asks for sizes on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        pad = (3 - x.shape[-1] % 3) % 3
        if x.shape[-1] // 2 + pad <= 4:
            x = x * 2
        return self.second(F.pad(x, (0, pad)))


class Recurrent(nn.Module):
    """A recurrent layer, which stays float, between linear ones."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.layer, self.second = nn.Linear(6, 8), kind(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.layer(F.relu(self.first(x)))[0])


def dynamic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor, fxq.QConfig | None]] = {
    "resnet": (Residual, IMAGES, None),
    "mobilenet": (Inverted, IMAGES, None),
    "transformer": (Encoder, TOKENS, None),
    "branches": (Branches, IMAGES, None),
    "dynamic": (dynamic, IMAGES, fxq.default_dynamic_qconfig),
    "per token": (dynamic, IMAGES, fxq.default_per_token_qconfig),
}


def prepared(name: str) -> tuple[fxq.Quantizer, Tensor]:
    make, x, qconfig = MODELS[name]
    torch.manual_seed(0)
    quantizer = fxq.prepare(make().eval(), x, qconfig)
    return fxq.calibrate(quantizer, [x], progress=False), x


def every_model_and_form() -> list[Any]:
    """Each model as integers, two of them as fake-quantize modules, and one between quantize and dequantize."""
    return [
        pytest.param(name, form, marks=() if name in often else pytest.mark.slow)
        for name in MODELS
        for form, often in (
            ("int8", ("resnet", "branches", "dynamic")),
            ("fake_quant", ("branches", "per token")),
            ("reference", ("branches",)),
        )
    ]


@pytest.mark.parametrize(("name", "form"), one_of(3, every_model_and_form()))
def test_a_graph_is_captured_before_the_first_run_as_after_it(name, form):
    quantizer, x = prepared(name)
    eager = fxq.convert(quantizer, to=form, **({"engine": "graph"} if form == "int8" else {}))
    larger = torch.cat([x, x.flip(0), x])
    batch = torch.export.Dim("batch", min=1, max=64)
    for runs in (0, 3):
        model = fxq.convert(quantizer, to=form)
        for _ in range(runs):
            model(x)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},)).module()
        for inputs in (x, larger):
            assert torch.equal(exported(inputs), eager(inputs))
        if not runs or name == "resnet":  # the state is the same in all: seconds each
            compiled: Any = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
            assert all(torch.equal(compiled(inputs), eager(inputs)) for inputs in (x, larger))


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights")  # torch's, of every recurrent layer
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (nn.LSTM, "int8"),
        (nn.GRU, "fake_quant"),
        (nn.LSTM, "reference"),
        pytest.param(nn.GRU, "int8", marks=pytest.mark.slow),
        pytest.param(nn.LSTM, "fake_quant", marks=pytest.mark.slow),
        pytest.param(nn.GRU, "reference", marks=pytest.mark.slow),
    ],
)
def test_recurrent_layers_are_exported(kind: type[nn.Module], form: str) -> None:
    """``torch.compile`` takes none, float or quantized."""
    x = torch.linspace(-1, 1, 60).reshape(2, 5, 6)
    torch.manual_seed(0)
    quantizer = fxq.calibrate(fxq.prepare(Recurrent(kind).eval(), x), [x], progress=False)
    larger = torch.cat([x, x.flip(0), x])
    for runs in (0, 3):
        model = fxq.convert(quantizer, to=form)
        for _ in range(runs):
            model(x)
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        assert torch.equal(torch.export.export(model, (x,), dynamic_shapes=(batch,)).module()(larger), model(larger))
        explicit = fxq.export(model, x, dynamic_shapes=(batch,)).module()
        assert torch.equal(explicit(larger), fxq.convert(quantizer, to="reference")(larger))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copied": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "cast and back": lambda model: model.double().float(),
}


@pytest.mark.parametrize("name", one_of(3, COPIES))
def test_a_copy_is_captured_before_its_first_run(name):
    quantizer, x = prepared("resnet")
    model = COPIES[name](fxq.convert(quantizer))
    assert torch.equal(torch.export.export(model, (x,)).module()(x), fxq.convert(quantizer)(x))


def test_a_shell_is_captured_once_it_has_its_state():
    quantizer, x = prepared("resnet")
    shell: Any = fxq.convert(fxq.prepare(Residual().eval(), x), allow_uncalibrated=True)
    for call in (lambda: shell(x), lambda: torch.export.export(shell, (x,))):
        with pytest.raises(CalibrationError) as caught:
            call()
        assert str(caught.value).startswith(
            "this unit was converted without calibration, so its qparams are unknown\n"
            "  at:       x\n"
            "  got:      y_scale = nan\n"
            "  expected: scales from calibration\n"
            "  hint:     calibrate before convert, or load a state dict that was saved after calibration"
        )
    shell.load_state_dict(fxq.convert(quantizer).state_dict())
    assert torch.equal(torch.export.export(shell, (x,)).module()(x), fxq.convert(quantizer)(x))


def test_what_was_changed_by_hand_is_read_in_a_call():
    quantizer, x = prepared("resnet")
    model: Any = fxq.convert(quantizer)
    unit = model.get_submodule("stem")
    unit.bias.zero_()
    unit.invalidate()
    with pytest.raises(InputError) as caught:
        torch.export.export(model, (x,))
    assert str(caught.value).startswith(
        "a graph cannot be captured of this unit, whose state was changed since it was last read\n"
        "  at:       stem\n"
        "  hint:     call the model once before torch.export or torch.compile\n"
    )  # torch writes behind it where it was
    expected = model(x)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)


@pytest.mark.parametrize("name", ["dynamic", "per token"])
def test_a_dynamic_layer_without_kernels_is_captured_by_its_reference(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("fxquant.nn.linear.why_not_native", lambda *_: "not today")
    quantizer, x = prepared(name)
    model = fxq.convert(quantizer)
    units = [module for module in model.modules() if isinstance(module, QuantizedDynamicLinear)]
    assert [unit.kernel() for unit in units] == ["reference: not today"] * 2
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))
