"""Biases that make up for what rounding the weights adds on average: the same in every form."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fxquant as fxq
from fxquant.fake_quantize import AdaRoundFakeQuantize, default_fake_quant
from fxquant.passes.correct_bias import mean_error, padding_coverage
from fxquant.passes.structural_zeros import Sizes, some_read_nothing
from tests.sampling import one_of

DEFAULT = fxq.get_default_qconfig()
COARSE = fxq.QConfig(
    DEFAULT.activation, DEFAULT.weight.with_args(bits=3), DEFAULT.output, correct_bias=True
)  # errors that can be seen
PLAIN = fxq.QConfig(DEFAULT.activation, DEFAULT.weight.with_args(bits=3), DEFAULT.output)
FLOAT64 = 1e-12
"""Relative rounding of sums of a few products in float64."""
LEFT = 0.05
"""Part of the mean error of the output that may remain: activations are rounded too, to 8 bits."""

LAYERS = {
    "linear": (nn.Linear(6, 4), (50, 6)),
    "linear of sequences": (nn.Linear(6, 4), (10, 5, 6)),
    "conv1d": (nn.Conv1d(6, 4, 3, bias=False), (4, 6, 20)),
    "conv2d in groups": (nn.Conv2d(6, 4, 3, stride=2, groups=2), (4, 6, 9, 9)),
    "depthwise": (nn.Conv2d(6, 6, 3, dilation=2, groups=6), (4, 6, 9, 9)),
    "conv3d": (nn.Conv3d(6, 4, 2), (2, 6, 4, 4, 4)),
    "transposed": (nn.ConvTranspose2d(6, 4, 2, stride=2), (4, 6, 5, 5)),
    "transposed in groups": (nn.ConvTranspose1d(6, 4, 3, stride=3, groups=2, bias=False), (4, 6, 9)),
    "conv2d with as much padding as image": (nn.Conv2d(6, 8, 3, padding=4), (4, 6, 12, 12)),
    "depthwise on four values": (nn.Conv2d(6, 6, 3, padding=1, groups=6), (4, 6, 2, 2)),
    "conv2d to the same size": (nn.Conv2d(6, 4, (5, 3), padding="same", dilation=2, groups=2), (4, 6, 5, 4)),
    "conv1d, padded and strided": (nn.Conv1d(6, 4, 5, stride=3, padding=3), (4, 6, 7)),
    "conv2d around a ring": (nn.Conv2d(6, 4, 3, padding=2, padding_mode="circular"), (4, 6, 5, 5)),
    "transposed, overlapping": (nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), (4, 6, 4, 5)),
    "transposed with gaps": (nn.ConvTranspose1d(6, 4, 2, stride=3, groups=2), (4, 6, 4)),
}


def output_means(y: Tensor, layer: nn.Module) -> Tensor:
    return y.double().movedim(1 - layer.weight.dim(), 0).flatten(1).mean(1)


@pytest.mark.parametrize("name", LAYERS)
def test_the_formula_is_the_mean_of_what_the_error_gives(name):
    """Exactly so for inputs that are the same everywhere in a channel."""
    layer, shape = copy.deepcopy(LAYERS[name][0]).double(), LAYERS[name][1]
    torch.manual_seed(0)
    error, means = torch.randn_like(layer.weight), torch.randn(6, dtype=torch.float64)
    axis = 1 - layer.weight.dim()
    x = means.reshape(-1, *[1] * (-1 - axis)).expand(shape)
    with torch.no_grad():
        layer.weight.copy_(error)
        layer.bias = None
        y = layer(x)
    sizes = (tuple(x.shape[2:]), tuple(y.shape[2:]))
    torch.testing.assert_close(
        mean_error(layer, error, means, sizes), output_means(y, layer), rtol=FLOAT64, atol=FLOAT64
    )


FORMS = ("int8", "fake_quant", "reference")


def converted(layer: nn.Module, x: Tensor, qconfig: Any) -> dict[str, Any]:
    prepared = fxq.prepare(nn.Sequential(copy.deepcopy(layer)).eval(), (x,), qconfig)
    fxq.calibrate(prepared, [x], progress=False)
    return {to: fxq.convert(prepared, to=to) for to in FORMS}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", one_of(3, LAYERS))
def test_the_mean_of_the_output_is_kept(name):
    layer, shape = LAYERS[name]
    off = {(to, corrected): 0.0 for to in FORMS for corrected in (True, False)}
    for seed in range(4):  # of one weight alone, the errors may happen to cancel
        torch.manual_seed(seed)
        layer.reset_parameters()
        x = torch.rand(shape) + 0.5
        with torch.no_grad():
            expected = output_means(layer(x), layer)
            for qconfig in (COARSE, PLAIN):
                for to, model in converted(layer, x, qconfig).items():
                    off[to, qconfig.correct_bias] += float((output_means(model(x), layer) - expected).norm())
    edges = 0.2 if "conv" in name or "depthwise" in name else 0.0  # values near them meet other taps than values inside
    for to in FORMS:
        assert off[to, True] < (LEFT + edges) * off[to, False], to


class Twice(nn.Module):
    """One layer at two places, whose inputs have different means; a batch norm behind one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.bn(self.conv(x)) * 3)


def twice() -> tuple[Twice, Tensor]:
    torch.manual_seed(0)
    model = Twice().eval()
    model.bn.running_mean.normal_()
    model.bn.bias.data.fill_(2.0)
    return model, torch.rand(4, 3, 5, 5)


def test_each_call_of_a_layer_has_a_bias_of_its_own_and_the_model_is_left_alone():
    model, x = twice()
    before = copy.deepcopy(model.state_dict())
    prepared = fxq.calibrate(fxq.prepare(model, (x,), COARSE), [x], progress=False)
    simulated = fxq.convert(prepared, to="fake_quant")
    first, second = (each.bias for name, each in simulated.named_modules() if hasattr(each, "weight_fake_quant"))
    assert not torch.equal(first, second)
    assert model.conv.bias is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_simulation_and_int8_have_the_same_biases():
    model, x = twice()
    prepared = fxq.calibrate(fxq.prepare(model, (x,), COARSE), [x], progress=False)
    simulated, int8 = fxq.convert(prepared, to="fake_quant"), fxq.convert(prepared)
    biases = [each.bias for each in simulated.modules() if hasattr(each, "weight_fake_quant")]
    stored = [each.bias for each in int8.modules() if isinstance(each, fxq.nn.QuantizedConv)]
    assert len(biases) == len(stored) == 2
    assert all(torch.equal(a, b) for a, b in zip(biases, stored, strict=True))


def test_a_shell_takes_the_state_of_a_calibrated_model():
    model, x = twice()
    prepared = fxq.prepare(model, (x,), COARSE)
    shell = fxq.convert(prepared, allow_uncalibrated=True)
    int8 = fxq.convert(fxq.calibrate(prepared, [x], progress=False))
    shell.load_state_dict(int8.state_dict())
    assert torch.equal(shell(x), int8(x))


def test_the_means_travel_with_the_state():
    model, x = twice()
    prepared = fxq.calibrate(fxq.prepare(model, (x,), COARSE), [x], progress=False)
    other = fxq.prepare(model, (x,), COARSE)
    other.load_state_dict(prepared.state_dict())
    assert torch.equal(fxq.convert(other)(x), fxq.convert(prepared)(x))


def test_the_integers_that_a_weight_brings_itself_count():
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 4), torch.rand(50, 6) + 0.5
    rounding = AdaRoundFakeQuantize.with_args(bits=3, dtype=torch.int8, qscheme="per_channel_symmetric")
    qconfig = fxq.QConfig(default_fake_quant, rounding, correct_bias=True)
    prepared = fxq.calibrate(fxq.prepare(nn.Sequential(layer).eval(), (x,), qconfig), [x], progress=False)
    fxq.convert(prepared)
    with torch.no_grad():
        (own,) = prepared.weight_layers.values()
        next(own.weight_fake_quant.parameters()).neg_()  # other roundings than the nearest
        off = {to: output_means(fxq.convert(prepared, to=to)(x) - layer(x), layer) for to in ("int8", "fake_quant")}
    for each in off.values():
        assert each.abs().max() < LEFT


def test_only_who_asks_for_it_gets_it():
    model, x = twice()
    assert not any("@" in name for name in fxq.prepare(model, (x,), PLAIN).observers)
    assert {"x@-3", "mul@-3"} <= set(fxq.prepare(model, (x,)).observers)
    dynamic = fxq.prepare(nn.Sequential(nn.Linear(5, 3)).eval(), (x,), fxq.default_dynamic_qconfig)
    assert not dynamic.observers


def test_what_is_trained_learns_its_biases():
    model, x = twice()
    trainable = fxq.prepare_qat(model, (x,), COARSE)
    assert not any("mean" in unit.roles for unit in trainable.quant_plan.units)
    trainable(x)
    simulated = fxq.convert(trainable, to="fake_quant")
    assert any(each.bias is None for each in simulated.modules() if hasattr(each, "weight_fake_quant"))


class Framed(nn.Module):
    """A frame of zeros around the image, and a norm that would make much of anything that is added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 12, 1, padding=1, bias=False), nn.LayerNorm(12)

    def forward(self, x):
        return self.norm(self.conv(x).permute(0, 2, 3, 1))


def test_where_outputs_read_nothing_but_padding_they_stay_exact():
    torch.manual_seed(0)
    model, x = Framed().eval(), torch.randn(8, 4, 1, 1) + 2
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
    with torch.no_grad():
        expected, got = model(x), int8(x)
    assert torch.equal(expected[:, 0], got[:, 0])
    assert float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean())) > 30


class Tokens(nn.Module):
    """A projection without a bias, and a norm that makes much of whatever becomes of rows of zeros."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 12, bias=False)

    def forward(self, x):
        return F.normalize(self.project(x), dim=-1)


def test_rows_of_zeros_stay_zeros_behind_a_linear_layer_without_a_bias():
    torch.manual_seed(0)
    model, x = Tokens().eval(), torch.randn(4, 6, 8) + 1
    x[:, 3:] = 0
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
    with torch.no_grad():
        expected, got = model(x), int8(x)
    assert torch.equal(got[:, 3:], torch.zeros(4, 3, 12))
    assert float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean())) > 30


CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def counted(layer: nn.Module, inputs: tuple[int, ...]) -> tuple[Tensor, Sizes]:
    """The shares, and the sizes that they hold for: of the ones of an input, what each tap alone hands on."""
    shares = torch.zeros(layer.kernel_size, dtype=torch.float64)
    x = torch.ones(1, 1, *inputs)
    for tap in range(shares.numel()):
        with torch.no_grad():
            layer.weight.zero_().view(-1)[tap] = 1
            y = layer(x)
        shares.view(-1)[tap] = y.double().mean()
    return shares, (inputs, tuple(y.shape[2:]))


def check(layer: nn.Module, inputs: tuple[int, ...]) -> None:
    expected, sizes = counted(layer, inputs)
    torch.testing.assert_close(padding_coverage(layer, sizes), expected, rtol=1e-12, atol=0)  # float64: a few products
    with torch.no_grad():
        layer.weight.fill_(1)
        y = layer(torch.ones(1, 1, *inputs))
    assert some_read_nothing(layer, sizes) == bool((y == 0).any())


def along(low: int, high: int, dims: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * dims)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_convolutions(data, dims):
    kernel, dilation, stride, padding = (data.draw(along(low, 3, dims)) for low in (1, 1, 1, 0))
    reach = [gap * (taps - 1) + 1 - 2 * pad for gap, taps, pad in zip(dilation, kernel, padding, strict=True)]
    inputs = tuple(max(least, 1) + more for least, more in zip(reach, data.draw(along(0, 4, dims)), strict=True))
    check(CONV[dims](1, 1, kernel, stride, padding, dilation, bias=False), inputs)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_transposed_convolutions(data, dims):
    kernel, dilation, stride = (data.draw(along(1, 3, dims)) for _ in range(3))
    padding = tuple(data.draw(st.integers(0, taps)) for taps in kernel)
    more = tuple(data.draw(st.integers(0, max(pair) - 1)) for pair in zip(dilation, stride, strict=True))
    least = tuple(1 + 2 * pad for pad in padding)
    inputs = tuple(size + extra for size, extra in zip(least, data.draw(along(0, 3, dims)), strict=True))
    layer = TRANSPOSED[dims](1, 1, kernel, stride, padding, more, bias=False, dilation=dilation)
    check(layer, inputs)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding):
    check(nn.Conv2d(1, 1, (4, 3), padding=padding, dilation=(1, 2), bias=False), (6, 5))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_that_repeats_values(mode):
    layer = nn.Conv2d(1, 1, 3, padding=2, padding_mode=mode, bias=False)
    check(layer, (4, 5))
    assert torch.equal(padding_coverage(layer, None), torch.ones(3, 3, dtype=torch.float64))


def test_more_padding_than_image():
    found = padding_coverage(nn.Conv1d(1, 1, 3, padding=1), ((2,), (2,)))
    assert found.tolist() == [0.5, 1, 0.5]


def test_unknown_sizes_are_large_ones():
    conv, transposed = nn.Conv1d(1, 1, 3, padding=1), nn.ConvTranspose1d(1, 1, 4, stride=2)
    assert padding_coverage(conv, None).tolist() == [1, 1, 1]
    assert padding_coverage(transposed, None).tolist() == [0.5, 0.5, 0.5, 0.5]
