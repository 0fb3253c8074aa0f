"""Layers with a simulated weight, and with an integer one."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.nn.recomputed import recomputed
from fxquant.nn.weight_forms import LAYERS, with_dequantized_weight, with_fake_quantized_weight
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import QParams, QScheme


class Tagged(nn.Conv2d):
    """A user's subclass that adds an attribute and keeps the forward."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.tag = "mine"


class Doubled(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


CASES = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (2, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2), (2, 4, 9)),
    "conv2d reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 7)),
    "conv2d same": (lambda: nn.Conv2d(4, 6, (2, 3), padding="same", dilation=2), (2, 4, 7, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, bias=False), (2, 2, 4, 5, 4)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 8, 3, groups=2), (2, 4, 5, 5)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 4, 2), (2, 2, 3, 3, 3)),
    "subclass": (lambda: Tagged(4, 6, 3), (2, 4, 7, 7)),
}
SCHEMES = (QScheme(symmetric=True, axis=0), QScheme(bits=4), QScheme(axis=0, group_size=2, symmetric=True))


def qparams_of(weight: torch.Tensor, scheme: QScheme) -> QParams:
    observer = (MinMaxObserver if scheme.axis is None else PerChannelMinMaxObserver)(scheme=scheme)
    observer(weight)
    return observer.qparams()


def made(case: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    build, shape = CASES[case]
    return build(), torch.randn(shape)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_float_layer_with_the_rounded_weight(case, scheme):
    layer, x = made(case)
    qparams = qparams_of(layer.weight, scheme)
    before = copy.deepcopy(layer.state_dict())
    rounded = copy.deepcopy(layer)
    rounded.weight.data = fake_quantize(layer.weight.detach(), qparams.scale, qparams.zero_point, scheme)
    for twin in (with_fake_quantized_weight(layer, qparams), with_dequantized_weight(layer, qparams)):
        assert torch.equal(twin(x), rounded(x))
        assert isinstance(twin, next(kind for kind in LAYERS if isinstance(layer, kind)))
        assert torch.equal(pickle.loads(pickle.dumps(twin))(x), rounded(x))
        assert torch.equal(copy.deepcopy(twin)(x), rounded(x))
    assert not torch.equal(layer(x), rounded(x))
    assert list(layer.state_dict()) == list(before)
    assert all(map(torch.equal, layer.state_dict().values(), before.values()))


def test_names_of_the_state():
    layer, _ = made("conv2d reflect")
    qparams = qparams_of(layer.weight, SCHEMES[0])
    fake, stored = with_fake_quantized_weight(layer, qparams), with_dequantized_weight(layer, qparams)
    assert [name for name, _ in fake.named_parameters()] == ["weight", "bias"]
    assert set(fake.state_dict()) == {"weight", "bias", "weight_fake_quant.scale", "weight_fake_quant.zero_point"}
    assert [name for name, _ in stored.named_parameters()] == ["bias"]
    assert {name: value.dtype for name, value in stored.state_dict().items()} == {
        "bias": torch.float32,
        "weight": torch.int8,
        "weight_scale": torch.float32,
        "weight_zero_point": torch.int32,
    }
    assert repr(stored).endswith("padding_mode=reflect, weight: int8 symmetric per channel (axis 0))")


def test_gradient_reaches_the_weight_straight_through():
    layer, x = made("conv2d same")
    qparams = qparams_of(layer.weight * 0.5, QScheme(symmetric=True, axis=0))
    twin = with_fake_quantized_weight(layer, qparams)
    twin(x).sum().backward()
    rounded = copy.deepcopy(layer)
    rounded.weight.data = fake_quantize(layer.weight.detach(), qparams.scale, qparams.zero_point, qparams.scheme)
    rounded(x).sum().backward()
    steps = torch.round(layer.weight.detach() * (1.0 / qparams.scale.reshape(-1, 1, 1, 1)))
    inside = (steps >= -128) & (steps <= 127)
    assert 0 < inside.sum() < inside.numel()
    assert torch.equal(twin.weight.grad, rounded.weight.grad * inside)
    assert torch.equal(twin.bias.grad, rounded.bias.grad)


def test_hooks_mode_and_attributes_are_kept():
    layer = Tagged(4, 6, 3).eval()
    layer.weight.requires_grad_(False)
    seen: list[int] = []
    layer.register_forward_hook(lambda module, args, out: seen.append(out.shape[1]))
    qparams = qparams_of(layer.weight, SCHEMES[0])
    for twin in (with_fake_quantized_weight(layer, qparams), with_dequantized_weight(layer, qparams)):
        twin(torch.randn(1, 4, 3, 3))
        assert not twin.training
        assert twin.tag == "mine"
    assert not with_fake_quantized_weight(layer, qparams).weight.requires_grad
    assert seen == [6, 6]
    assert type(layer) is Tagged


def test_a_module_may_do_the_rounding():
    layer, x = made("linear")
    twin = with_fake_quantized_weight(layer, nn.Tanh())
    assert torch.equal(twin(x), F.linear(x, layer.weight.tanh(), layer.bias))


def test_a_parametrized_weight_becomes_a_plain_one():
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    x = torch.randn(3, 6)
    qparams = qparams_of(layer.weight, SCHEMES[0])
    right = F.linear(x, fake_quantize(layer.weight, qparams.scale, qparams.zero_point, qparams.scheme), layer.bias)
    for twin in (with_fake_quantized_weight(layer, qparams), with_dequantized_weight(layer, qparams)):
        assert torch.equal(twin(x), right)
        assert "parametrizations.weight.original0" not in twin.state_dict()


def test_half_precision_keeps_the_grid():
    layer, x = made("conv2d same")
    qparams = qparams_of(layer.weight, SCHEMES[0])
    for twin in (with_fake_quantized_weight(layer, qparams), with_dequantized_weight(layer, qparams)):
        y = twin.bfloat16()(x.bfloat16())
        assert y.dtype == twin.bias.dtype == torch.bfloat16
        scales = [value for name, value in twin.state_dict().items() if name.endswith("scale")]
        assert all(torch.equal(scale, qparams.scale) for scale in scales)
        assert len(scales) == 1


def test_compiles_without_a_graph_break():
    layer, x = made("conv_transpose2d")
    qparams = qparams_of(layer.weight, SCHEMES[0])
    for twin in (with_fake_quantized_weight(layer, qparams), with_dequantized_weight(layer, qparams)):
        assert torch.equal(torch.compile(twin, fullgraph=True, backend="eager")(x), twin(x))


def test_a_shell_runs_once_its_state_is_loaded():
    layer, x = made("linear")
    qparams = qparams_of(layer.weight, SCHEMES[0])
    unknown = QParams(qparams.scheme, torch.full_like(qparams.scale, math.nan), qparams.zero_point)
    for make in (with_fake_quantized_weight, with_dequantized_weight):
        shell, full = make(layer, unknown), make(layer, qparams)
        with pytest.raises(CalibrationError, match=r"scale = nan, int8 symmetric per channel \(axis 0\)\n"):
            shell(x)
        shell.load_state_dict(full.state_dict(), strict=True)
        assert torch.equal(shell(x), full(x))


@pytest.mark.parametrize("layer", [nn.ReLU(), Doubled(1, 1, 1), nn.Bilinear(2, 2, 2)], ids=["ReLU", "own", "Bilinear"])
def test_other_modules_are_refused(layer):
    with pytest.raises(InputError) as caught:
        with_fake_quantized_weight(layer, QParams(QScheme(), torch.ones(1), torch.zeros(1, dtype=torch.int32)))
    assert str(caught.value) == (
        "the weight of this kind of module cannot be quantized\n"
        f"  got:      {type(layer).__name__}\n"
        "  expected: Linear, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, "
        "Embedding, EmbeddingBag, LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell, "
        "or a class derived from one without own forward"
    )


def test_gradients_are_the_same_and_nothing_is_kept():
    source, x = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    calls = []

    def make():
        calls.append(None)
        return source.detach() * 2

    value = source * 2
    with recomputed(value, source, make):
        y = torch.nn.functional.linear(x, value)
    del value
    y.sum().backward()
    assert calls
    found = x.grad.clone(), source.grad.clone()
    x.grad = source.grad = None
    torch.nn.functional.linear(x, source * 2).sum().backward()
    assert torch.equal(found[0], x.grad)
    assert torch.equal(found[1], source.grad)


def test_a_source_that_changed_meanwhile_is_an_error():
    source, x = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    value = source * 2
    with recomputed(value, source, lambda: source.detach() * 2):
        y = torch.nn.functional.linear(x, value)
    with torch.no_grad():
        source.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_nothing_is_done_where_no_gradient_is_wanted():
    source = torch.randn(5, 3)
    with recomputed(source * 2, source, lambda: pytest.fail("called")):
        torch.nn.functional.linear(torch.randn(4, 3, requires_grad=True), source * 2).sum().backward()


def test_a_module_keeps_no_rounded_weight_and_leaves_the_rest_to_hooks_outside():
    layer = fxq.prepare_qat(nn.Sequential(nn.Linear(64, 32)).train(), torch.randn(2, 64))
    x = torch.randn(2, 64)
    kept, given = [], []

    def pack(tensor):
        kept.append(tensor)
        return len(kept) - 1

    def unpack(index):
        given.append(index)
        return kept[index]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = layer(x)
    y.sum().backward()
    own = layer.get_submodule("0").weight
    large = [tensor for tensor in kept if tensor.numel() == own.numel() and tensor.is_floating_point()]
    assert all(tensor.untyped_storage().data_ptr() == own.untyped_storage().data_ptr() for tensor in large)
    assert any(tensor.shape == x.shape for tensor in kept)
    assert set(given) == set(range(len(kept)))
    assert own.grad.abs().sum() > 0
