"""Standalone modules that take or give integers: their parent quantizes the one, and dequantizes the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.compat.custom_config import PrepareCustomConfig
from fxquant.compat.qconfig import default_qconfig
from fxquant.compat.quantize_fx import convert_fx, convert_to_reference_fx, prepare_fx
from fxquant.errors import LoweringError
from fxquant.nn import Dequantize, Quantize, QuantizedConv

X = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    """Takes two tensors and gives two."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(y).relu()


class Net(nn.Module):
    """Calls it between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner, self.last = nn.Conv2d(2, 2, 1), Two(), nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.inner(self.conv(x), y=x)
        return self.last(first) + second


class Alone(nn.Module):
    """Calls a standalone convolution behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner = nn.Conv2d(2, 2, 1), nn.Sequential(nn.Conv2d(2, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.conv(x))


def prepared(model: nn.Module, inputs: tuple[Tensor, ...], taken: list[int], given: list[int]) -> nn.Module:
    own = {"input_quantized_idxs": taken, "output_quantized_idxs": given}
    custom = PrepareCustomConfig().set_standalone_module_name("inner", None, inputs, own, None)
    made = prepare_fx(model, {"": default_qconfig}, (X,), custom)
    made(X)
    return made


@pytest.mark.parametrize(("taken", "given"), [([0], [0]), ([0], []), ([], [0])])
def test_results_are_those_of_a_whole_model(taken, given):
    torch.manual_seed(0)
    model = Alone().eval()
    whole = prepare_fx(model, {"": default_qconfig}, (X,))
    whole(X)
    int8 = convert_fx(prepared(model, (X,), taken, given))
    assert isinstance(int8.inner.get_submodule("0"), QuantizedConv)
    assert [type(module) for module in int8.inner.modules() if isinstance(module, (Quantize, Dequantize))] == [
        *[Quantize] * (not taken),
        *[Dequantize] * (not given),
    ]
    step = float(int8.inner.get_submodule("0").y_scale) * 1.01
    assert (int8(X) - convert_fx(whole)(X)).abs().max() <= step


@torch.no_grad()
def test_names_and_places_decide():
    torch.manual_seed(0)
    model = Net().eval()
    observed = prepared(model, (X, X), [1], [0])
    for int8 in (convert_fx(observed), convert_to_reference_fx(observed)):
        assert (int8(X) - model(X)).abs().max() < 0.05 * model(X).abs().max()
        assert int8.inner.integer_inputs.keys() == {"y"}
        assert int8.inner.integer_outputs.keys() == {0}


@torch.no_grad()
@pytest.mark.parametrize(("taken", "given"), [([], []), ([0], [0])])
@pytest.mark.parametrize("convert", [convert_fx, convert_to_reference_fx])
def test_standalone_modules_are_exported_in_explicit_form(taken, given, convert):
    torch.manual_seed(0)
    converted = convert(prepared(Alone().eval(), (X,), taken, given))
    explicit = fxq.explicit(converted)
    assert torch.equal(explicit(X), converted(X))
    targets = {str(node.target) for node in fxq.export(converted, X).graph.nodes}
    assert not [target for target in targets if target.startswith("fxquant")]
    assert "quantized_decomposed.quantize_per_tensor.default" in targets


@pytest.mark.slow
@torch.no_grad()
def test_standalone_modules_are_written_as_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    converted = convert_to_reference_fx(prepared(Net().eval(), (X, X), [1], [0]))
    report = fxq.export_onnx(converted, tmp_path / "net.onnx", X, check=True)
    assert not report.breaches
    assert report.kernels["QLinearConv"] == 3  # the fourth gives floats


def test_a_quantized_layer_inside_a_module_that_stays_whole_has_no_explicit_form():
    inner = prepared(Alone().eval(), (X,), [], [])
    converted = convert_fx(inner)
    converted.inner = nn.Sequential(converted.inner)
    with pytest.raises(LoweringError, match="this module has no explicit form") as caught:
        fxq.explicit(converted)
    assert "fxquant.nn.conv.QuantizedConv" in str(caught.value)
