"""``prepare(model, None)``: nothing is run, and what depends on shapes says so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.measure.noise import sqnr


class Net(nn.Module):
    """Layers, and what depends on shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.skip = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(3, 4, 1)
        self.head, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.kernel = nn.Parameter(torch.randn(4, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn(self.conv(x)) + self.skip(x))
        y = F.max_pool2d(F.conv2d(y, self.kernel), 2)
        return self.norm(self.head(y.mean((2, 3)).view(x.shape[0], -1)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def test_units_are_found_by_their_layers(net):
    prepared = fxq.prepare(net, None)
    patterns = {unit.root: unit.pattern for unit in prepared.plan.units}
    assert list(patterns.values())[:2] == ["conv_bn", "conv"]
    assert (patterns["conv2d"], patterns["max_pool2d"]) == ("conv", "max_pool2d")
    reasons = {refusal.node: refusal.reason for refusal in prepared.plan.refusals}
    assert not {"conv2d", "linear"} & reasons.keys()


class Product(nn.Module):
    """``x @ w``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (nn.Linear(8, 4), (5, 8)),
        (nn.Linear(8, 4), (2, 5, 8)),
        (nn.Linear(8, 4), (8,)),
        (nn.Conv1d(8, 4, 3), (2, 8, 6)),
        (Product(), (2, 5, 8)),
    ],
    ids=["linear", "linear_3d", "linear_1d", "conv1d", "product"],
)
def test_a_layer_is_the_whole_model(layer, sizes):
    torch.manual_seed(0)
    layer, x = layer.eval(), torch.randn(sizes)
    results = []
    for example in (None, x):
        prepared = fxq.prepare(layer, example)
        prepared.observe(x)
        results.append(fxq.convert(prepared)(x))
    assert len(prepared.plan.units) == 1
    assert torch.equal(*results)
    assert (results[0] - layer(x)).abs().max() < 0.05 * layer(x).abs().max()


def test_a_layer_that_is_the_whole_model_trains_without_an_example():
    qat = fxq.prepare_qat(nn.Linear(4, 2), None)
    qat(torch.randn(3, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in qat.parameters())
    assert len(qat.preparation.plan.units) == 1
    assert fxq.convert(qat.eval())(torch.randn(3, 4)).shape == (3, 2)


def test_a_weight_computed_from_inputs_says_so_without_an_example():
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(self.layer(x), x)

    (refusal,) = fxq.prepare(Computed().eval(), None).plan.refusals
    assert refusal.reason == "its weight is computed from the inputs; only one that stays the same is quantized"


def test_batches_of_a_loader_calibrate(net):
    prepared = fxq.prepare(net, None)
    data = [(torch.randn(2, 3, 6, 6), torch.tensor([0, 1])) for _ in range(3)]
    fxq.calibrate(prepared, data, progress=False)
    int8 = fxq.convert(prepared)
    for x in (data[0][0], torch.randn(3, 3, 8, 8)):
        assert (int8(x) - net(x)).abs().max() < 0.1 * net(x).abs().max()


def test_integers_are_those_with_an_example():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    data, x = [torch.randn(2, 3, 6, 6) for _ in range(2)], torch.randn(2, 3, 6, 6)
    results = []
    for example in (None, x):
        prepared = fxq.prepare(model, example)
        fxq.calibrate(prepared, data, progress=False)
        results.append(fxq.convert(prepared)(x))
    assert torch.equal(*results)


def test_a_branch_on_a_shape_stays_whole():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.shape[0] > 1 else -x

    model = nn.Sequential(nn.Linear(4, 4), Branching(), nn.Linear(4, 4)).eval()
    with pytest.warns(fxq.FxQuantWarning, match="cannot trace"):
        prepared = fxq.prepare(model, None)
    assert [unit.pattern for unit in prepared.plan.units] == ["linear", "linear"]
    with pytest.raises(fxq.FxQuantError):
        fxq.prepare(model, None, strict=True)


def test_training_needs_no_example():
    qat = fxq.prepare_qat(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), None)
    qat(torch.randn(2, 4)).sum().backward()
    assert fxq.convert(qat.eval())(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        ((nn.Linear(8, 8), nn.BatchNorm1d(8)), (5, 8)),
        ((nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)), (2, 3, 6, 6)),
        ((nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), (2, 3, 8)),
    ],
    ids=["linear", "behind_relu", "conv1d"],
)
def test_batch_norms_take_the_rank_that_they_take_in_float(layers, sizes):
    torch.manual_seed(0)
    model, x = nn.Sequential(*layers), torch.randn(sizes)
    model.train()(x + 1)
    model.eval()
    prepared = fxq.prepare(model, None)
    prepared.observe(x)
    assert (fxq.convert(prepared)(x) - model(x)).abs().max() < 0.05 * model(x).abs().max()


def test_a_norm_behind_a_convolution_counts_the_channels_of_a_batch():
    prepared = fxq.prepare(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)).eval(), None)
    with pytest.raises(InputError, match="a norm was planned for inputs of 3 dimensions"):
        prepared(torch.randn(3, 6))


def test_products_of_two_tensors():
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x) @ self.b(x).transpose(-1, -2)
            return torch.bmm(y, y) + torch.einsum("bij,bjk->bik", y, y)

    torch.manual_seed(0)
    model, x = Products().eval(), torch.randn(2, 5, 8)
    prepared = fxq.prepare(model, None)
    prepared.observe(x)
    assert (fxq.convert(prepared)(x) - model(x)).abs().max() < 0.1 * model(x).abs().max()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.ConvTranspose1d(3, 4, 3), (2, 3, 5)),
        (nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
        (nn.ConvTranspose3d(3, 4, 2), (2, 3, 3, 3, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_an_argument_that_code_branches_on_is_left_out(layer, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    prepared = fxq.prepare(layer.eval(), None)
    fxq.calibrate(prepared, [x], progress=False)
    converted = fxq.convert(prepared)
    assert any(isinstance(module, fxq.nn.QuantizedConv) for module in converted.modules())
    with torch.no_grad():
        assert sqnr(layer(x), converted(x)) > 30
        with pytest.raises(InputError, match="the argument 'output_size' was fixed"):
            converted(x, [int(size) + 1 for size in layer(x).shape[2:]])


class MayScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.fc(x)
        return y if scale is None else y * scale


def test_an_argument_that_can_be_traced_is_an_input():
    prepared = fxq.prepare(MayScale().eval(), None)
    x = torch.ones(2, 4)
    assert torch.equal(prepared(x, x * 2), 2 * prepared.graph_module(x, x))
    int8 = fxq.convert(prepared)
    assert int8(x, x).shape == (2, 4)
    for model in (prepared, int8):
        with pytest.raises(InputError, match="the argument 'scale' is left out, and was not when") as caught:
            model(x)
        assert "prepare with example inputs that leave it out" in str(caught.value)


class PassesOn(nn.Module):
    """Two arguments go to a function as they are, and code branches on the third."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, size: int | None = None, gain: float | None = None
    ) -> torch.Tensor:
        y = F.scaled_dot_product_attention(self.fc(x), x, x, attn_mask=mask, scale=size)
        return y if gain is None else y * gain


def test_an_argument_that_code_only_passes_on_may_be_left_out():
    model, x = PassesOn().eval(), torch.ones(2, 3, 4)
    prepared = fxq.prepare(model, None)
    with torch.no_grad():
        assert torch.equal(prepared(x, gain=1.0), model(x))
        assert torch.equal(prepared(x, size=2.0, gain=3.0), model(x, size=2.0) * 3)
    with pytest.raises(InputError, match="the argument 'gain' is left out"):
        prepared(x)
