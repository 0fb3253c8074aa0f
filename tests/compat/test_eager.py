"""Programs for torch.ao's eager mode: attributes say what is quantized, and the model itself becomes the graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.compat import eager
from fxquant.compat.fake_quantize import disable_observer
from fxquant.compat.observer import MinMaxObserver
from fxquant.compat.qconfig import QConfig, default_qconfig, get_default_qat_qconfig, get_default_qconfig
from fxquant.compat.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx
from fxquant.compat.stubs import DeQuantStub, FloatFunctional, FXFloatFunctional, QuantStub, QuantWrapper
from fxquant.errors import InputError, NotOffered


class Net(nn.Module):
    """A convolution, a sum by FloatFunctional and a linear layer between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.skip, self.sum = nn.Conv2d(3, 4, 1), FloatFunctional()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.quant(x)
        y = self.sum.add_relu(self.relu(self.bn(self.conv(x))), self.skip(x))
        return self.dequant(self.head(y.mean((2, 3))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def test_a_model_becomes_int8_in_place(net):
    expected, parameters = net(X), dict(net.named_parameters())
    net.qconfig = get_default_qconfig("x86")
    prepared = eager.prepare(net, inplace=True)
    assert prepared is net
    assert net.conv.weight is parameters["conv.weight"]
    net(X)
    assert eager.convert(net, inplace=True) is net
    kinds = {type(module).__name__ for module in net.modules()}
    assert {"QuantizedConv", "QuantizedLinear"} <= kinds
    assert (net(X) - expected).abs().max() < 0.05 * expected.abs().max()
    assert torch.equal(copy.deepcopy(net)(X), net(X))


def test_attributes_decide(net):
    net.qconfig, net.head.qconfig = default_qconfig, None
    net.skip.qconfig = get_default_qconfig("x86")
    prepared = eager.prepare(net)
    assert isinstance(net, Net)
    assert isinstance(net.conv, nn.Conv2d)
    assert isinstance(prepared.activation_post_process_0, MinMaxObserver)
    prepared(X)
    int8 = eager.convert(prepared)
    assert isinstance(int8.head, nn.Linear)
    assert int8.skip.weight_scale.shape == (4,)
    assert int8.conv.weight_scale.shape == (1,)
    reference = eager.convert(prepared, is_reference=True)
    torch.testing.assert_close(reference(X), int8(X), rtol=0.05, atol=0.05)


def test_training_in_place_trains_the_parameters_that_an_optimizer_has(net):
    net.train().qconfig = get_default_qat_qconfig("x86")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    eager.prepare_qat(net, inplace=True)
    before = net.head.weight.detach().clone()
    net(X).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net.head.weight, before)
    net.eval().apply(disable_observer)
    int8 = eager.convert(net)
    assert (int8(X) - net(X)).abs().max() <= 1.01 * float(int8.head.y_scale), "one step"
    with pytest.raises(InputError, match="training mode"):
        eager.prepare_qat(Net().eval())


def test_calibration_and_training_by_a_function(net):
    net.qconfig = default_qconfig

    def run(model: nn.Module, x: torch.Tensor) -> None:
        model(x)

    assert isinstance(eager.quantize(net, run, [X]).head, fxq.nn.QuantizedLinear)
    net.qconfig = get_default_qat_qconfig("x86")
    assert isinstance(eager.quantize_qat(net, run, [X]).head, fxq.nn.QuantizedLinear)
    assert not net.training
    assert isinstance(net.head, nn.Linear)


def test_qconfigs_are_inherited(net):
    net.qconfig, net.bn.qconfig = default_qconfig, None
    other = get_default_qconfig("x86")
    eager.propagate_qconfig_(net, {"head": other})
    assert net.conv.qconfig is default_qconfig
    assert net.bn.qconfig is None
    assert net.head.qconfig is other
    assert isinstance(eager.add_quant_dequant(net).conv, QuantWrapper)
    assert isinstance(net.bn, nn.BatchNorm2d)


class Own(nn.Module):
    """A module that quantizes itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @classmethod
    def from_float(cls, module: nn.Module) -> Observed:
        made = Observed()
        made.qconfig = module.qconfig
        return made


class Observed(Own):
    """What takes its place while values are measured; ``prepare`` gives it the observer."""


class Quantized(Own):
    """What takes its place in the end."""

    @classmethod
    def from_observed(cls, module: Observed) -> Quantized:
        assert isinstance(module.qconfig, QConfig)
        made = cls()
        made.found = module.activation_post_process.calculate_qparams()
        return made


def test_custom_modules_have_an_observer_of_what_they_give():
    model = nn.Sequential(nn.Linear(3, 3), Own()).eval()
    model.qconfig = default_qconfig
    given = {"float_to_observed_custom_module_class": {Own: Own}}
    prepared = eager.prepare(model, prepare_custom_config_dict=given)
    y = prepared(torch.randn(8, 3)).detach()
    given = {"observed_to_quantized_custom_module_class": {Observed: Quantized}}
    scale, _ = eager.convert(prepared, convert_custom_config_dict=given).get_submodule("1").found
    low, high = min(float(y.min()), 0.0), max(float(y.max()), 0.0)
    assert float(scale) == pytest.approx((high - low) / 127, rel=1e-4)


def test_what_is_refused(net):
    with pytest.raises(NotOffered, match="allow_list"):
        eager.prepare(net, allow_list=[nn.Linear])
    with pytest.raises(NotOffered, match="mapping"):
        eager.convert(net, mapping={})
    with pytest.raises(InputError, match="was not prepared"):
        eager.convert(net)


def test_operators_of_float_functional():
    x, y, f = torch.randn(2, 3), torch.randn(2, 3), FXFloatFunctional()
    assert torch.equal(f.add(x, y), x + y)
    assert torch.equal(f.add_scalar(x, 2.0), x + 2)
    assert torch.equal(f.mul(x, y), x * y)
    assert torch.equal(f.mul_scalar(x, 2.0), x * 2)
    assert torch.equal(f.cat([x, y], 1), torch.cat([x, y], 1))
    assert torch.equal(f.add_relu(x, y), (x + y).relu())
    assert torch.equal(f.matmul(x, y.T), x @ y.T)
    with pytest.raises(RuntimeError, match="not intended"):
        f(x)


def test_containers_that_torch_fuses_into_are_no_training_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Identity()).eval()
    model[0].training = True  # as a new ConvReLU2d of torch.ao.nn.intrinsic is
    model.qconfig, x = get_default_qconfig("x86"), torch.randn(2, 3, 8, 8)
    prepared = eager.prepare(model)  # a warning is an error in tests
    for _ in range(2):
        prepared(x)
    assert (eager.convert(prepared)(x) - model(x)).abs().max() < 0.05


def test_programs_for_torch_before_1_13_give_no_example_inputs():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    prepared = prepare_fx(model, {"": get_default_qconfig("x86")})
    prepared(x)
    assert (convert_fx(prepared)(x) - model(x)).abs().max() < 0.05
    trained = prepare_qat_fx(model.train(), {"": get_default_qat_qconfig("x86")})
    trained(x).sum().backward()
    assert isinstance(convert_fx(trained.eval()).get_submodule("0"), fxq.nn.QuantizedConv)
