"""Norms that were written out, or are frozen, are folded as batch norms are."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.measure.noise import sqnr
from fxquant.measure.parity import measure_parity
from tests.outputs import rounding_outputs

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
AS_GOOD = 0.5
"""dB: the same sums, rounded on ranges that differ in the last bit."""


def give_values(model: nn.Module) -> nn.Module:
    """The same weights and statistics for all models of one structure, whatever their norms are."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            scale = module.weight[0].numel() ** -0.5
            module.weight.data = torch.randn(module.weight.shape, generator=generator) * scale
        elif isinstance(module, (nn.BatchNorm2d, FrozenBatchNorm2d)):
            for tensor, low in zip(
                (module.weight, module.bias, module.running_mean, module.running_var),
                (0.5, -0.5, -0.5, 0.5),
                strict=True,
            ):
                tensor.data.copy_(torch.rand(len(tensor), generator=generator) + low)
    return model.eval()


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1), norm(8)
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), norm(8)
        self.last, self.last_norm = nn.Conv2d(8, 4, 1), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x)).relu()
        x = F.relu(self.norm(self.conv(x)) + x)
        return self.last_norm(self.last(x))


def units(prepared: fxq.Quantizer) -> list[str]:
    return [unit.pattern for unit in prepared.plan.units]


def test_a_frozen_batch_norm_is_folded_as_a_batch_norm_is():
    found = {}
    for norm in (nn.BatchNorm2d, FrozenBatchNorm2d):
        model = give_values(Block(norm))
        prepared = fxq.prepare(model, X).calibrate([X], progress=False)
        assert torch.equal(prepared(X), model(X))
        int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
        assert measure_parity(int8, simulated, (X,)).breaches == ()
        assert torch.equal(fxq.convert(prepared, to="reference")(X), simulated(X))
        found[norm] = units(prepared), sqnr(model(X), int8(X)), set(int8.state_dict())
        assert prepared.coverage().float_rows == ()
    (plain, plain_sqnr, plain_names), (frozen, frozen_sqnr, frozen_names) = found.values()
    assert frozen == plain == ["conv_bn_act", "conv_bn_add_act", "conv_bn"]
    assert frozen_sqnr > plain_sqnr - AS_GOOD
    assert frozen_names == plain_names


def test_a_detectors_backbone():
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    plans = []
    for norm in (nn.BatchNorm2d, FrozenBatchNorm2d):
        model = give_values(torchvision.models.resnet18(norm_layer=norm))
        prepared = fxq.prepare(model, x)
        plans.append([(unit.pattern, sorted(unit.roles)) for unit in prepared.plan.units])
    assert plans[0] == plans[1]


def test_training_leaves_it_frozen_under_its_names():
    model = give_values(Block(FrozenBatchNorm2d)).train()
    before = copy.deepcopy(model.state_dict())
    trained = fxq.prepare_qat(model, X)
    assert set(before) <= set(trained.state_dict())
    assert {name for name, _ in trained.named_parameters()} == {name for name, _ in model.named_parameters()}
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        trained(X).square().mean().backward()
        optimizer.step()
    after = trained.state_dict()
    same = {name for name, value in before.items() if torch.equal(value, after[name])}
    assert same == {name for name in before if "norm" in name}
    int8 = fxq.convert(trained)
    assert [module for module in int8.modules() if "Affine" in type(module).__name__] == []
    assert sqnr(trained.eval()(X), int8(X)) > 30


class Scaled(nn.Module):
    """A convolution and a factor and a shift of each channel that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.scale, self.shift = nn.Parameter(torch.rand(8, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.conv(x) * self.scale + self.shift))


def test_factors_that_are_learned_learn_on():
    torch.manual_seed(0)
    model = Scaled()
    trained = fxq.prepare_qat(model.train(), X)
    assert [unit.pattern for unit in trained.preparation.plan.units] == ["conv_bn_act", "conv"]
    trained(X).square().mean().backward()
    model(X).square().mean().backward()
    own = dict(trained.named_parameters())
    for name, parameter in model.named_parameters():
        cosine = F.cosine_similarity(own[name].grad.flatten(), parameter.grad.flatten(), 0)
        assert cosine > 0.98, name
    assert own["scale"].shape == (8, 1, 1)
    before = trained(X)
    with torch.no_grad():
        own["scale"].mul_(0.8)
    assert not torch.allclose(trained(X), before, rtol=0.05)
    model.load_state_dict({name: own[name] for name in model.state_dict()})
    assert sqnr(model.eval()(X), fxq.convert(trained)(X)) > 30


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda m, x: m.b(F.relu(m.a(x) * m.s + m.t)), ["conv_bn_act", "conv"]),
        (lambda m, x: m.b(m.a(x) * m.s), ["conv_bn", "conv"]),
        (lambda m, x: m.b(m.a(x) * m.s + m.t + m.a(x)), ["conv", "conv_bn_add", "conv"]),
        (lambda m, x: m.b((y := m.a(x)) * m.s + m.t + y), ["conv", "bn", "add", "conv"]),
        (lambda m, x: m.b(m.a(x) * m.p), ["conv", "mul", "conv"]),
        (lambda m, x: m.b((y := m.a(x)) * y.mean((2, 3), keepdim=True)), ["conv", "mean", "mul", "conv"]),
    ],
    ids=["norm and act", "a factor", "a residual", "read elsewhere", "per position", "of the input"],
)
def test_units(body, expected):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
            self.s, self.t = nn.Parameter(torch.rand(1, 4, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 4, 1, 1))
            self.p = nn.Parameter(torch.rand(16, 16))

        def forward(self, x: Tensor) -> Tensor:
            return body(self, x)

    torch.manual_seed(0)
    model = Net().eval()
    prepared = fxq.prepare(model, X, rounding_outputs()).calibrate([X], progress=False)
    assert units(prepared) == expected
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    assert measure_parity(int8, simulated, (X,)).breaches == ()
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))
        assert sqnr(model(X), int8(X)) > 30


def test_a_norm_alone_holds_for_one_rank():
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = FrozenBatchNorm2d(3), nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(F.relu(self.norm(x)))

    model = give_values(Alone())
    prepared = fxq.prepare(model, X).calibrate([X], progress=False)
    assert units(prepared) == ["bn_act", "conv"]
    int8 = fxq.convert(prepared)
    assert sqnr(model(X), int8(X)) > 30
    with pytest.raises(InputError, match="dimensions"):
        int8(X[0])
