"""The explicit form computes what the reference form computes, for every class of modules and every kind of qparams."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.errors import CalibrationError, DuplicateNameError, InputError, LoweringError
from fxquant.exporting.decomposed import register
from fxquant.exporting.qparams import PerChannel, PerGroup, PerTensor, explicit_qparams
from fxquant.exporting.table import EXPLICIT
from fxquant.fake_quantize.converted import DynamicFakeQuantize, StaticFakeQuantize
from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.nn.base import QuantizedModule
from fxquant.nn.weight_forms import LAYERS
from tests.exporting.integers import integers_of
from tests.sampling import one_of

FORMS = ("int8", "reference", "fake_quant")


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Two(nn.Module):
    """A function of two values on different qparams; a convolution reads the result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.first, self.second, self.third = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.LazyConv2d(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.function(self.first(x), torch.tanh(self.second(x))))


class After(nn.Module):
    """A function of quantized values, which a convolution gave; another one reads the result."""

    def __init__(self, function: Callable[..., Any], channels: int = 4) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.LazyConv2d(channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


class Residual(nn.Module):
    """The sum of a convolution and its input, clamped."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.conv, self.norm, self.act = (
            nn.Conv2d(4, 4, 1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            act,
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.act(self.norm(self.conv(x)) + x)


class States(nn.Module):
    """What a recurrent layer gives first."""

    def __init__(self, layer: nn.Module, of_several: bool = True) -> None:
        super().__init__()
        self.layer, self.of_several = layer, of_several

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x)
        return result[0] if self.of_several else result


class Words(nn.Module):
    """Look-ups."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bag, self.fc = nn.Embedding(10, 7), nn.EmbeddingBag(10, 7, mode="sum"), nn.Linear(7, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.table(ids).mean(1) + self.bag(ids))


def images(channels: int = 4) -> Tensor:
    return torch.randn(2, channels, 8, 8)


def batch_norm(kind: type[nn.Module], x: Tensor) -> nn.Module:
    norm: Any = kind(x.shape[1])
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm


RECURRENT: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "lstm": lambda: (States(nn.LSTM(5, 6, 2, bidirectional=True)), torch.randn(4, 2, 5)),
    "lstm projected": lambda: (States(nn.LSTM(5, 6, proj_size=3, bias=False)), torch.randn(4, 2, 5)),
    "gru": lambda: (States(nn.GRU(5, 6, batch_first=True)), torch.randn(2, 4, 5)),
    "rnn": lambda: (States(nn.RNN(5, 6, nonlinearity="relu")), torch.randn(4, 2, 5)),
    "lstm cell": lambda: (States(nn.LSTMCell(5, 6)), torch.randn(2, 5)),
    "gru cell": lambda: (States(nn.GRUCell(5, 6), False), torch.randn(2, 5)),
    "rnn cell": lambda: (States(nn.RNNCell(5, 6), False), torch.randn(2, 5)),
}

MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    **RECURRENT,
    "conv1d": lambda: (
        nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv1d(6, 2, 1)),
        torch.randn(2, 4, 9),
    ),
    "conv2d": lambda: (
        nn.Sequential(nn.Conv2d(4, 8, 3, 2, "valid", 2, 2, False), nn.ReLU6(), nn.Conv2d(8, 8, 1, groups=8)),
        images(),
    ),
    "conv2d same": lambda: (nn.Sequential(nn.Conv2d(4, 8, 4, padding="same"), nn.Hardtanh(-0.5, 0.7)), images()),
    "conv2d reflect": lambda: (nn.Sequential(nn.Conv2d(4, 8, 3, padding=(1, 2), padding_mode="reflect")), images()),
    "conv2d circular": lambda: (
        nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), nn.ELU()),
        images(),
    ),
    "conv3d": lambda: (nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.ReLU()), torch.randn(2, 2, 4, 5, 6)),
    "unbatched": lambda: (nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1)), torch.randn(4, 8, 8)),
    "transposed": lambda: (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(6, 4, (2, 3), groups=2)),
        images(),
    ),
    "transposed depthwise": lambda: (nn.Sequential(nn.ConvTranspose1d(4, 4, 3, 2, groups=4)), torch.randn(2, 4, 7)),
    "transposed to one each": lambda: (nn.Sequential(nn.ConvTranspose1d(4, 2, 3, groups=2)), torch.randn(2, 4, 7)),
    "transposed 3d": lambda: (nn.Sequential(nn.ConvTranspose3d(2, 3, 2, dilation=2)), torch.randn(2, 2, 3, 4, 5)),
    "residual": lambda: (Residual(F.relu), images()),
    "residual, no activation": lambda: (Residual(nn.Identity()), images()),
    "linear": lambda: (nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)), torch.randn(4, 5)),
    "matmul": lambda: (Call(lambda a: torch.matmul(a, a.transpose(-1, -2)) * 0.25), torch.randn(2, 3, 4)),
    "requantize": lambda: (Two(lambda a, b: torch.cat([a, b], 1) + torch.cat([b, a * 1.0], 1)), images()),
    "batch norm": lambda: (
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), batch_norm(nn.BatchNorm2d, images()), nn.Conv2d(4, 2, 1)),
        images(),
    ),
    "add": lambda: (Two(lambda a, b: F.relu(a + b)), images()),
    "sub": lambda: (Two(lambda a, b: a - b), images()),
    "mul": lambda: (Two(lambda a, b: a * b), images()),
    "maximum": lambda: (Two(torch.maximum), images()),
    "minimum": lambda: (Two(torch.minimum), images()),
    "cat": lambda: (Two(lambda a, b: torch.cat([a, b, a], 1)), images()),
    "stack": lambda: (Two(lambda a, b: torch.stack([a, b], 1).flatten(1, 2)), images()),
    "prelu": lambda: (nn.Sequential(nn.Conv2d(4, 4, 1), nn.PReLU(4), nn.Conv2d(4, 2, 1)), images()),
    "pad": lambda: (After(lambda x: F.pad(x, (1, 0, 2, -1))), images()),
    "pad with a number": lambda: (After(lambda x: F.pad(x, (1, 0), value=0.3)), images()),
    "pad by a computed width": lambda: (After(lambda x: F.pad(x, (0, x.shape[-1] % 3))), images()),
    "reflect": lambda: (After(lambda x: F.pad(x, (1, 0, 0, 2), mode="reflect")), images()),
    "bilinear": lambda: (After(lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear")), images()),
    "bicubic": lambda: (
        After(lambda x: F.interpolate(x, size=(5, x.shape[-1]), mode="bicubic", align_corners=True)),
        images(),
    ),
    "nearest": lambda: (After(lambda x: F.interpolate(x, scale_factor=2)), images()),
    "max_pool1d": lambda: (After(lambda x: F.max_pool1d(x.flatten(2), 2).unsqueeze(-1)), images()),
    "max_pool2d": lambda: (After(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)), images()),
    "max_pool3d": lambda: (After(lambda x: F.max_pool3d(x.unsqueeze(1), 2).squeeze(1)), images()),
    "adaptive_max_pool2d": lambda: (After(lambda x: F.adaptive_max_pool2d(x, (3, 4))), images()),
    "amax": lambda: (After(lambda x: x.amax(2, keepdim=True)), images()),
    "max values": lambda: (After(lambda x: x.max(2, keepdim=True)[0]), images()),
    "max of all": lambda: (After(lambda x: x.min().reshape(1, 1, 1, 1)), images()),
    "avg_pool1d": lambda: (After(lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 1).unsqueeze(-1)), images()),
    "avg_pool2d": lambda: (After(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False)), images()),
    "avg_pool3d": lambda: (After(lambda x: F.avg_pool3d(x.unsqueeze(1), 2, divisor_override=3).squeeze(1)), images()),
    "adaptive_avg_pool1d": lambda: (After(lambda x: F.adaptive_avg_pool1d(x.flatten(2), 3).unsqueeze(-1)), images()),
    "adaptive_avg_pool2d": lambda: (After(lambda x: F.adaptive_avg_pool2d(x, (3, None))), images()),
    "adaptive_avg_pool3d": lambda: (After(lambda x: F.adaptive_avg_pool3d(x.unsqueeze(1), 2).squeeze(1), 4), images()),
    "mean": lambda: (After(lambda x: x.mean((2, 3), keepdim=True)), images()),
    "mean of all": lambda: (After(lambda x: x * x.mean()), images()),
    "sum": lambda: (After(lambda x: x.sum(2, keepdim=True)), images()),
    "softmax": lambda: (Call(lambda x: torch.softmax(x @ x.transpose(-1, -2), -1) @ x), torch.randn(2, 5, 4)),
    "layer_norm": lambda: (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2)), torch.randn(3, 6)),
    "layer_norm without weights": lambda: (
        nn.Sequential(nn.LayerNorm((5, 6), elementwise_affine=False), nn.Linear(6, 2)),
        torch.randn(3, 5, 6),
    ),
    "hardswish": lambda: (nn.Sequential(nn.Conv2d(4, 4, 1), nn.Hardswish(), nn.Conv2d(4, 2, 1)), images()),
    "clamp": lambda: (After(lambda x: x.clamp(-0.1, 0.2)), images()),
    "function of floats": lambda: (nn.Sequential(nn.Sigmoid(), nn.Linear(8, 2)), images()),
    "views": lambda: (
        After(lambda x: x.permute(0, 2, 3, 1).reshape(2, -1, 4).transpose(1, 2).unflatten(2, (8, 8)).roll(1, 2)),
        images(),
    ),
    "chunks": lambda: (After(lambda x: torch.cat([part * 0.5 for part in x.chunk(2, 1)], 1)), images()),
    "unbind": lambda: (After(lambda x: x.unbind(1)[2].unsqueeze(1), 3), images()),
    "index": lambda: (After(lambda x: x[:, [2, 0], 1:, None, 3]), images()),
    "expand": lambda: (After(lambda x: x.mean((2, 3), keepdim=True).expand_as(x)), images()),
    "rescaled": lambda: (After(lambda x: (x * 0.5).flatten(2).unsqueeze(-1)), images()),
    "dynamic": lambda: (nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2, bias=False)), torch.randn(3, 6)),
    "per token": lambda: (nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2, bias=False)), torch.randn(2, 3, 6)),
    "weight only": lambda: (nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2, bias=False)), torch.randn(3, 6)),
    "words": lambda: (Words(), torch.randint(0, 10, (4, 5))),
    "words of 4 bits": lambda: (Words(), torch.randint(0, 10, (4, 5))),
}
"""Models of a few operators, which together hold every class that an int8 model can hold."""

WITHOUT_CALIBRATION = fxq.get_default_qconfig_mapping().set_object_type(nn.Linear, fxq.default_dynamic_qconfig)

CONFIGURATIONS: dict[str, Any] = {
    **dict.fromkeys(RECURRENT, fxq.default_dynamic_qconfig),
    "dynamic": fxq.default_dynamic_qconfig,
    "per token": fxq.default_per_token_qconfig,
    "weight only": fxq.weight_only_qconfig(bits=4, group_size=3),
    "words": WITHOUT_CALIBRATION,
    "words of 4 bits": WITHOUT_CALIBRATION.set_object_type(
        nn.Embedding, fxq.float_qparams_weight_only_qconfig_4bit
    ).set_object_type(nn.EmbeddingBag, fxq.float_qparams_weight_only_qconfig_4bit),
}


def calibrated(model: nn.Module, x: Tensor, qconfig: Any = None, **arguments: Any) -> fxq.Quantizer:
    with torch.no_grad():
        model.eval()(x)  # lazy layers
    return fxq.calibrate(
        fxq.prepare(model, x, qconfig, **arguments), [x, x * 1.5] if x.is_floating_point() else [x], progress=False
    )


@functools.cache
def quantizer_of(name: str) -> tuple[fxq.Quantizer, Tensor]:
    """Made once: nothing changes a quantizer."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    return calibrated(model, x, CONFIGURATIONS.get(name)), x


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", one_of(3, MODELS))
def test_equals_the_reference_at_every_quantize(name: str) -> None:
    quantizer, x = quantizer_of(name)
    wanted, result = integers_of(fxq.convert(quantizer, to="reference"), x)
    for form in FORMS:
        converted = fxq.convert(quantizer, to=form)
        explicit = fxq.explicit(converted)
        found, given = integers_of(explicit, x)
        assert torch.equal(given, result), form
        if form == "fake_quant":
            continue  # it quantizes and dequantizes in one module
        assert set(wanted) <= set(found), form
        for value, q in wanted.items():
            assert torch.equal(found[value], q), f"{form}: {value}"
        assert torch.equal(copy.deepcopy(explicit)(x), result)


def classes_in(models: Iterable[nn.Module]) -> set[type[nn.Module]]:
    return {type(module) for model in models for module in model.modules()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_the_models_hold_every_class() -> None:
    quantizers = [quantizer_of(name)[0] for name in MODELS]
    seen = classes_in(fxq.convert(quantizer, to=form) for quantizer in quantizers for form in FORMS)
    assert set(EXPLICIT) - seen == {fxq.nn.Requantize}  # of values with two readers: below


def test_every_class_has_a_row() -> None:
    public = {getattr(fxq.nn, name) for name in fxq.nn.__all__} - {
        QuantizedModule,
        fxq.nn.ElementFunction,
        fxq.nn.RecurrentShape,
    }
    layers = {kind for pair in LAYERS.values() for kind in pair}
    assert public | layers | {StaticFakeQuantize, DynamicFakeQuantize} == set(EXPLICIT)


SCHEMES = [
    fxq.QScheme(bits=bits, signed=signed, symmetric=symmetric)
    for bits in (2, 4, 8, 16)
    for signed in (False, True)
    for symmetric in (False, True)
]


def qparams(scheme: fxq.QScheme, *shape: int) -> fxq.QParams:
    """Random ones."""
    generator = torch.Generator().manual_seed(scheme.bits)
    scale = torch.rand(shape or (1,), generator=generator) * 0.2 + 0.01
    steps = torch.randint(scheme.quant_min, scheme.quant_max + 1, scale.shape, generator=generator, dtype=torch.int32)
    return fxq.QParams(scheme, scale, steps)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_borders_on_random_qparams(scheme: fxq.QScheme) -> None:
    x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0)) * 4
    other = qparams(replace(scheme, bits=8))
    for kind in (qparams(scheme), qparams(replace(scheme, axis=1), 4), qparams(replace(scheme, axis=-1), 6)):
        quantize, own = fxq.nn.Quantize(kind), explicit_qparams(kind)
        q = quantize(x)
        assert torch.equal(own.quantize(x), q)
        assert torch.equal(own.dequantize(q), fxq.nn.Dequantize(kind)(q))
        assert torch.equal(EXPLICIT[fxq.nn.Quantize](quantize)(x), q)
        for dtype in (torch.float32, torch.float16, torch.float64):
            back = fxq.nn.Dequantize(kind, dtype)
            assert torch.equal(EXPLICIT[fxq.nn.Dequantize](back)(q), back(q))
            if dtype != torch.float64:
                assert torch.equal(own.quantize(x.to(dtype)), quantize(x.to(dtype)))
        requantize = fxq.nn.Requantize(kind, other)
        assert torch.equal(EXPLICIT[fxq.nn.Requantize](requantize)(q), requantize(q))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_weights_in_groups(scheme: fxq.QScheme) -> None:
    register()
    for shape, axis, size, counts in (
        ((6, 8), 0, 4, (6, 2)),
        ((6, 8), 0, 1, (6, 8)),  # the operator for groups takes no single values
        ((6, 8, 1), 0, 1, (6, 8)),
        ((6, 8, 3), 0, 1, (6, 8)),
        ((6, 8, 3), 0, 4, (6, 2)),
        ((3, 6, 8, 2), 1, 4, (6, 2)),
    ):
        kind = qparams(replace(scheme, axis=axis, group_size=size), *counts)
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q = to_integers(weight, kind.scale, kind.zero_point, kind.scheme)
        explicit = explicit_qparams(kind)
        assert isinstance(explicit, PerGroup)
        assert torch.equal(explicit.dequantize(q), from_integers(q, kind.scale, kind.zero_point, kind.scheme))


def test_scales_are_numbers_in_the_graph_and_float32_in_buffers() -> None:
    one, many = PerTensor(qparams(fxq.QScheme())), PerChannel(qparams(fxq.QScheme(axis=0), 3), 0)
    assert isinstance(one.scale, float)
    assert torch.tensor(one.scale).item() == one.scale  # a float32 value
    many.half()
    assert (many.scale.dtype, many.zero_point.dtype) == (torch.float32, torch.int64)
    assert str(one) == f"PerTensor(int8 [-128, 127] scale={one.scale:.4g} zero_point={one.zero_point})"
    assert str(many) == "PerChannel(int8 [-128, 127] 3 channels, axis=0)"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bits", one_of(3, [2, 3, 4, 5, 6, 7, 8]))
@pytest.mark.parametrize("name", ["conv2d", "residual", "linear", "transposed", "softmax"])
def test_any_qparams_of_the_reference_back_end(name: str, bits: int) -> None:
    torch.manual_seed(bits)
    model, x = MODELS[name]()
    signed = bits % 2 == 0
    dtype = torch.int8 if signed else torch.uint8
    activation = fxq.MinMaxObserver.with_args(dtype=dtype, bits=bits, qscheme=torch.per_tensor_affine)
    group = {"group_size": 2} if name == "linear" and bits > 4 else {}
    weight = fxq.PerChannelMinMaxObserver.with_args(
        dtype=torch.int8, bits=bits, qscheme="per_channel_affine" if bits < 4 else "per_channel_symmetric", **group
    )
    if name == "linear" and group:
        model, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(4, 6)
    quantizer = calibrated(model, x, fxq.QConfig(activation=activation, weight=weight), backend="reference")
    reference = fxq.convert(quantizer, to="reference")
    wanted, result = integers_of(reference, x)
    found, given = integers_of(fxq.explicit(reference), x)
    assert torch.equal(given, result)
    assert all(torch.equal(found[value], q) for value, q in wanted.items())
    assert torch.equal(fxq.explicit(fxq.convert(quantizer, to="fake_quant"))(x), result)


def test_a_loaded_file_and_a_tuned_model(tmp_path: Any) -> None:
    quantizer, x = quantizer_of("residual")
    int8 = fxq.convert(quantizer)
    fxq.save(int8, tmp_path / "a.fxq")
    explicit = fxq.explicit(fxq.load(tmp_path / "a.fxq"))
    assert torch.equal(explicit(x), fxq.explicit(int8)(x))
    assert fxq.explicit(explicit) is explicit


def test_learned_weights_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1)), images()
    weight = fxq.AdaRoundFakeQuantize.with_args(
        observer=fxq.PerChannelMinMaxObserver, dtype=torch.int8, qscheme=torch.per_channel_symmetric
    )
    quantizer = calibrated(model, x, fxq.QConfig(activation=fxq.MinMaxObserver, weight=weight))
    for form in FORMS:
        reference = fxq.convert(quantizer, to="reference")
        assert torch.equal(fxq.explicit(fxq.convert(quantizer, to=form))(x), reference(x))


def test_a_model_that_trained() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1)), images()
    qat = fxq.prepare_qat(model.train(), x)
    qat(x)
    before = {name: value.clone() for name, value in qat.state_dict().items()}
    explicit = fxq.explicit(qat)
    assert torch.equal(explicit(x), fxq.convert(qat, to="reference")(x))
    assert all(torch.equal(value, before[name]) for name, value in qat.state_dict().items())


def test_integers_in_and_out() -> None:
    torch.manual_seed(0)
    model, x = After(nn.ReLU()), images()
    model.function, model.first = nn.Identity(), Call(lambda x: F.max_pool1d(x.flatten(2), 2).unsqueeze(-1))
    quantizer = calibrated(model, x, integer_inputs=True, integer_outputs=True)
    q = torch.randint(0, 256, x.shape, dtype=torch.uint8)
    for form in ("int8", "reference"):
        converted = fxq.convert(quantizer, to=form)
        explicit = fxq.explicit(converted)
        assert torch.equal(explicit(q), fxq.convert(quantizer, to="reference")(q))
        program = fxq.export(converted, q)
        assert not [node for node in program.graph.nodes if getattr(node.target, "namespace", "") == "fxquant"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float32])
def test_other_integers_than_those_that_are_taken(dtype: torch.dtype, tmp_path: Any) -> None:
    """An int8 has other values than a uint8 of the same bits; a float was not quantized."""
    model, x = nn.Sequential(nn.MaxPool2d(1), nn.Conv2d(4, 4, 1)).eval(), images()
    converted = fxq.convert(calibrated(model, x, integer_inputs=True))
    explicit, given = fxq.explicit(converted), torch.zeros(x.shape, dtype=dtype)
    assert [node.op for node in explicit.graph.nodes][:2] == ["placeholder", "call_module"]
    kind = str(dtype).removeprefix("torch.")
    words = f"the input 'input' holds {kind} where the model takes quantized values\n  got:      {kind}[2, 4, "
    for call in (explicit, lambda q: fxq.export(converted, q), lambda q: fxq.export_onnx(converted, tmp_path / "a", q)):
        with pytest.raises(InputError) as caught:
            call(given)
        assert str(caught.value).startswith(words)
        assert "  expected: uint8, " in str(caught.value)
        assert "While executing" not in str(caught.value)


class TestRefusals:
    def test_a_float_and_a_prepared_model(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2)).eval()
        prepared: Any = fxq.prepare(model, torch.randn(2, 3))
        for other, name in ((model, "Sequential"), (prepared, "Quantizer, which prepare gave")):
            with pytest.raises(InputError) as caught:
                fxq.explicit(other)
            assert str(caught.value) == (
                "explicit takes a model that convert gave\n"
                f"  got:      {name}\n"
                "  expected: the result of fxq.convert or fxq.load\n"
                "  hint:     fxq.convert(prepared)"
            )

    @pytest.mark.parametrize("form", FORMS)
    def test_a_shell_without_qparams(self, form: str) -> None:
        model, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).eval(), torch.randn(2, 3)
        shell = fxq.convert(fxq.prepare(model, x), to=form, allow_uncalibrated=True)
        with pytest.raises(CalibrationError) as caught:
            fxq.explicit(shell)
        assert "calibrate before convert, or load a state dict" in str(caught.value)

    def test_hooks(self) -> None:
        quantizer, _ = quantizer_of("linear")
        int8 = fxq.convert(quantizer, engine="graph")
        int8.get_submodule("0").register_forward_hook(lambda module, args, result: result * 2)
        with pytest.raises(LoweringError, match="this module has hooks, and no explicit form holds them"):
            fxq.explicit(int8)

    def test_a_module_of_the_users(self) -> None:
        class Doubled(fxq.nn.QuantizedLinear):
            pass

        quantizer, x = quantizer_of("linear")
        int8 = fxq.convert(quantizer, engine="graph")
        int8.get_submodule("0").__class__ = Doubled
        with pytest.raises(LoweringError) as caught:
            fxq.explicit(int8)
        lines = str(caught.value).splitlines()
        assert lines[0] == "this module has no explicit form"
        assert lines[-3].endswith("Doubled")
        assert lines[-2:] == [
            "  expected: a class with a row in fxquant.exporting.table.EXPLICIT",
            "  hint:     fxquant.exporting.register_explicit(MyModule, build) adds one",
        ]
        try:
            fxq.register_explicit(Doubled, EXPLICIT[fxq.nn.QuantizedLinear])
            assert torch.equal(fxq.explicit(int8)(x), fxq.explicit(fxq.convert(quantizer))(x))
            with pytest.raises(DuplicateNameError, match="this class has an explicit form already"):
                fxq.register_explicit(Doubled, EXPLICIT[fxq.nn.QuantizedLinear])
        finally:
            EXPLICIT.pop(Doubled, None)

    def test_a_function_of_the_users_on_quantized_values(self) -> None:
        quantizer, _ = quantizer_of("views")
        int8 = fxq.convert(quantizer, engine="graph")
        node = next(node for node in int8.graph.nodes if node.target is torch.permute)
        node.target = abs
        with pytest.raises(LoweringError, match="this operator on quantized values has no explicit form") as caught:
            fxq.explicit(int8)
        assert "got:      builtins.abs" in str(caught.value)

    def test_a_zero_point_that_is_no_whole_number(self) -> None:
        x, scheme = torch.randn(2, 3), fxq.QScheme(signed=False, axis=1, float_qparams=True)

        def simulated(*zero_points: float) -> GraphModule:
            quantizer = calibrated(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)), x)
            model = fxq.convert(quantizer, to="fake_quant")
            kind = fxq.QParams(scheme, torch.tensor([0.1, 0.2, 0.3]), torch.tensor(zero_points))
            model.add_submodule("input_1_fake_quant", StaticFakeQuantize(kind))
            return model

        whole = simulated(1.0, 2.0, 3.0)
        assert torch.equal(fxq.explicit(whole)(x), whole(x))
        with pytest.raises(LoweringError) as caught:
            fxq.explicit(simulated(1.0, 2.25, 3.0))
        assert str(caught.value) == (
            "a zero point is no whole number\n"
            "  got:      2.25, uint8 affine per channel (axis 1)\n"
            "  expected: whole numbers, which integer operators take\n"
            "  hint:     an observer without float_qparams, such as PerChannelMinMaxObserver with an affine qscheme"
        )
