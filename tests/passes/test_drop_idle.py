"""What does nothing in evaluation mode stands in the way of no fusion, and stays where something would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import StochasticDepth, stochastic_depth

import fxquant as fxq
from fxquant.passes.idle import restore_idle

X = torch.linspace(-2, 3, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


class Between(nn.Module):
    """Something between a convolution, its batch norm, and the activation."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.body = body
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        y = self.body(self, self.norm(self.body(self, self.conv(x))))
        return self.last(F.relu(y))


class PathDrop(nn.Module):
    """Drops samples while training, as in many vision models."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        return x * x.new_empty(len(x), 1, 1, 1).bernoulli_(1 - self.p) / (1 - self.p)


def with_noise(x: Tensor, training: bool = False) -> Tensor:
    return x + torch.randn_like(x) if training else x


IDLE = {
    "Identity": Between(lambda m, x: m.part(x), part=nn.Identity()),
    "Dropout": Between(lambda m, x: m.part(x), part=nn.Dropout(0.3)),
    "Dropout2d, in place": Between(lambda m, x: m.part(x), part=nn.Dropout2d(0.3, inplace=True)),
    "Dropout of nothing": Between(lambda m, x: m.part(x), part=nn.Dropout(0.0)),
    "dropout": Between(lambda m, x: F.dropout(x, 0.4, m.training)),
    "StochasticDepth": Between(lambda m, x: m.part(x), part=StochasticDepth(0.4, "row")),
    "stochastic_depth": Between(lambda m, x: stochastic_depth(x, 0.4, "batch", m.training)),
    "module of the user's": Between(lambda m, x: m.part(x), part=PathDrop(0.4)),
    "function of the user's": Between(lambda m, x: with_noise(x, training=m.training)),
    "clone": Between(lambda m, x: x.clone()),
    "torch.clone": Between(lambda m, x: torch.clone(x)),
    "float": Between(lambda m, x: x.float()),
    "to": Between(lambda m, x: x.to(torch.float32)),
    "type_as": Between(lambda m, x: x.type_as(m.conv.weight)),
    "detach": Between(lambda m, x: x.detach()),
    "data": Between(lambda m, x: x.data),
    "type": Between(lambda m, x: x.type(torch.float32)),
    "type of another": Between(lambda m, x: x.type(x.dtype)),
    "plus": Between(lambda m, x: +x),
    "to its own dtype": Between(lambda m, x: x.to(x.dtype)),
    "to a dtype by keyword": Between(lambda m, x: x.to(dtype=x.dtype)),
    "to device and dtype": Between(lambda m, x: x.to(x.device, x.dtype)),
    "to another": Between(lambda m, x: x.to(m.conv.weight)),
    "slices of all": Between(lambda m, x: x[:, :][...]),
    "times one": Between(lambda m, x: 1.0 * x * 1),
    "over one": Between(lambda m, x: x.div(1.0)),
    "pad of nothing": Between(lambda m, x: F.pad(x, (0, 0, 0, 0))),
    "all at once": Between(lambda m, x: m.two(m.one(x.clone()).float()), one=nn.Identity(), two=nn.Dropout(0.5)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", IDLE.values(), ids=IDLE.keys())
def test_idle_operators_stop_no_fusion(model):
    torch.manual_seed(0)
    prepared = fxq.prepare(model.eval(), X)
    assert [unit.pattern for unit in prepared.plan.units] == ["conv_bn_act", "conv"]
    assert torch.equal(prepared(X), model(X))
    last = X.clone(memory_format=torch.channels_last)
    assert torch.equal(prepared(last), model(last))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", IDLE.values(), ids=IDLE.keys())
def test_training_keeps_what_trains(model):
    """The same random numbers in the same order: without rounding, loss and gradients are those of the float model."""
    model = model.train()
    qat = fxq.prepare_qat(model, X)
    qat.apply(fxq.disable_fake_quant)
    results, gradients = [], []
    for each in (model, qat):
        each.zero_grad()
        torch.manual_seed(0)
        results.append(each(X))
        results[-1].square().sum().backward()
        gradients.append({name: p.grad for name, p in each.named_parameters() if "fake_quant" not in name})
    assert torch.allclose(results[0], results[1], atol=1e-5)  # the batch norm's factor goes in and out again
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        if gradient is None:  # behind a detach
            assert gradients[1][name] is None, name
        else:
            torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-4)
    qat.apply(fxq.enable_fake_quant)
    qat(X)
    converted = fxq.convert(qat)
    assert [unit.pattern for unit in converted.quant_plan.units] == ["conv_bn_act", "conv"]
    assert converted.quant_plan.idle == ()


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_what_sees_to_a_memory_order_stands_behind_the_activation(order):
    torch.manual_seed(0)
    model = Between(lambda m, x: x.contiguous(memory_format=order)).eval()
    prepared = fxq.prepare(model, X)
    assert [unit.pattern for unit in prepared.plan.units] == ["conv_bn_act", "contiguous", "conv"]
    for x in (X, X.clone(memory_format=torch.channels_last)):
        assert torch.equal(prepared(x), model(x))
        assert prepared(x).stride() == model(x).stride()
    assert [node.name for node in prepared.graph.nodes] == [
        "x",
        "conv",
        "norm",
        "relu",
        "contiguous_1",
        "last",
        "output",
    ]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), StochasticDepth(0.2, "row")

    def forward(self, x):
        return torch.relu(x + self.drop(self.norm(self.conv(x))))


def test_a_residual_behind_stochastic_depth_is_fused():
    assert [unit.pattern for unit in fxq.prepare(Residual().eval(), X).plan.units] == ["conv_bn_add_act"]


class Written(nn.Module):
    """A clone keeps what was from what is written afterwards."""

    def __init__(self, body) -> None:
        super().__init__()
        self.conv, self.last, self.body = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), body

    def forward(self, x):
        return self.last(self.body(self.conv(x)))


def of_a_copy(y: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    z = copied(y)
    z[:, 0] = 0.0
    return torch.relu(y) + z


def of_the_original(y: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    z = copied(y)
    y[:, :, 1:3].mul_(2.0)
    return torch.relu(z) + y


def through_a_view(y: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    z = copied(y)
    y.permute(0, 2, 3, 1).add_(1.0)
    return torch.relu(z) + y


def activated_in_place(y: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    z = copied(y)
    return F.relu(z, inplace=True) + y


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "times one": lambda y: y * 1,
    "over one": lambda y: y / 1.0,
    "pad of nothing": lambda y: F.pad(y, (0, 0, 0, 0)),
    "no copy": lambda y: y[:, :],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("body", [of_a_copy, of_the_original, through_a_view, activated_in_place])
def test_a_copy_keeps_values_from_writes(body, copied):
    torch.manual_seed(0)
    model = Written(lambda y: body(y, COPIES[copied])).eval()
    prepared = fxq.prepare(model, X).calibrate([X], progress=False)
    for x in (X, -X):
        assert torch.equal(prepared(x), model(x))
    expected, got = model(X).detach(), fxq.convert(prepared)(X)
    assert float((got - expected).abs().max()) < 0.05 * float(expected.abs().max())


def test_a_result_in_the_dtype_of_the_input_follows_it():
    class Follows(Written):
        def forward(self, x):
            return super().forward(x).to(x.dtype)

    int8 = fxq.quantize(Follows(lambda y: y.to(dtype=y.dtype)).eval(), [X], progress=False)
    assert [int8(X.to(dtype)).dtype for dtype in (torch.float32, torch.float64)] == [torch.float32, torch.float64]


def test_what_is_computed_behind_a_conversion_has_the_dtype_of_the_input():
    class Computes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return torch.relu(self.fc(x.float()).to(x.dtype)) * 2

    model, x = Computes().eval(), torch.randn(4, 8)
    prepared = fxq.prepare(model, x).calibrate([x], progress=False)
    for to in ("int8", "fake_quant", "reference"):
        converted = fxq.convert(prepared, to=to)
        for dtype in (torch.float16, torch.float32, torch.float64):
            assert converted(x.to(dtype)).dtype == model(x.to(dtype)).dtype == dtype


def test_what_is_made_of_no_weight_follows_the_device():
    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            start = torch.zeros(x.shape[0], 8).to(x.device)
            return self.last(start.to(dtype=x.dtype)) + torch.maximum(self.fc(x), start)

    prepared = fxq.prepare(Starts().eval(), torch.randn(4, 8))
    elsewhere = prepared.graph_module.to("meta")
    assert elsewhere(torch.empty(4, 8, device="meta")).device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions_to_the_dtype_of_another_are_there_in_training(dtype):
    """Under autocast ``y`` has another dtype than ``x``, so that they do something."""
    model = Between(lambda m, x: x.to(dtype=m.last.weight.dtype)).train()
    qat = fxq.prepare_qat(model, X)
    qat.apply(fxq.disable_fake_quant)
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(qat(X), model(X), atol=0.05, rtol=0.05)
    assert sum(node.target == "to" for node in qat.graph.nodes) == 2


def test_what_is_returned_is_memory_of_its_own():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.conv(x)
            return y, y.clone(), x.clone()

    x = X.clone()
    one, other, same = fxq.prepare(Twice().eval(), x)(x)
    one.zero_()
    same.zero_()
    assert float(other.abs().sum()) > 0
    assert torch.equal(x, X)


def test_an_input_may_come_in_another_dtype():
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.conv(x.float() / 255)

    model = Bytes().eval()
    prepared = fxq.prepare(model, X)
    image = torch.arange(2 * 3 * 36, dtype=torch.uint8).reshape(2, 3, 6, 6)
    assert torch.equal(prepared.graph_module(image), model(image))


def test_what_is_asked_for_by_name_stays():
    """A pattern of the user's, hooks, and modules that are kept whole."""
    mine = fxq.Pattern("mine", fxq.op(nn.Identity)(fxq.tensor("x")), output=fxq.Output.PICKED)
    model = IDLE["Identity"].eval()
    plan = fxq.prepare(model, X, patterns=(mine, *fxq.DEFAULT_PATTERNS)).plan
    assert not plan.idle
    assert "part" in [node.name for node in fxq.prepare(model, X, leaf_modules=("part",)).graph.nodes]


def test_calls_are_put_back_where_they_stood():
    prepared = fxq.prepare(IDLE["all at once"].eval(), X)
    gm = prepared.graph_module
    assert [call.name for call in prepared.plan.idle] == ["float_1", "two", "float_2", "two_1"]
    restore_idle(gm, prepared.plan.idle)
    gm.graph.lint()
    names = [node.name for node in gm.graph.nodes]
    assert names == ["x", "conv", "float_1", "two", "norm", "float_2", "two_1", "relu", "last", "output"]
    assert [node.args[0].name for node in gm.graph.nodes if node.name in ("two", "norm", "relu")] == [
        "float_1",
        "two",
        "two_1",
    ]


class MaskedReaders(nn.Module):
    """One dropout for two layers and a sum: all see the same zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.one, self.two = nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.drop(x)
        return self.one(y), self.two(y), torch.sin(y), x + y


def test_all_readers_of_a_dropout_see_one_mask():
    model, x = MaskedReaders().train(), torch.rand(4, 8) + 1
    qat = fxq.prepare_qat(model, x)
    qat.apply(fxq.disable_fake_quant)
    torch.manual_seed(0)
    expected = model(x)
    torch.manual_seed(0)
    assert all(map(torch.equal, qat(x), expected))
    qat.apply(fxq.enable_fake_quant)
    torch.manual_seed(0)
    one, _, waves, _ = qat(x)
    zeros = waves == 0
    assert torch.equal(zeros, expected[2] == 0)
    assert 0 < int(zeros.sum()) < zeros.numel()
    assert float((one - expected[0]).detach().abs().max()) < 0.1 * float(expected[0].detach().abs().max())


FACTS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda y: y.shape[2] * y.shape[3],
    "size": lambda y: y.size(-1) + y.size()[1],
    "numel": lambda y: y.numel() + y.dim(),
    "dtype": lambda y: torch.tensor([0.5, 1.25, 1.5, 1.75]).to(y.dtype) if y.is_floating_point() else 0,
    "branch": lambda y: 1.0 if y.shape[-1] == 4 else 2.0,
}


class Asks(nn.Module):
    """Asks for sizes between a convolution, its batch norm, and the activation."""

    def __init__(self, fact: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.last, self.fact = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), fact

    def forward(self, x):
        y = self.conv(x)
        first = self.fact(y)
        y = self.norm(y)
        second = self.fact(y)
        return self.last(F.relu(y)) + first + second


@pytest.mark.parametrize("fact", FACTS)
def test_what_asks_for_sizes_stands_in_the_way_of_no_fusion(fact):
    torch.manual_seed(0)
    model = Asks(FACTS[fact]).eval()
    prepared = fxq.prepare(model, X)
    assert next(unit.pattern for unit in prepared.plan.units) == "conv_bn_act"
    fxq.calibrate(prepared, [X], progress=False)
    int8, trained = fxq.convert(prepared), fxq.prepare_qat(model.train(), X)
    with torch.no_grad():
        expected = model.eval()(X)
        assert torch.equal(prepared(X), expected)
        for _ in range(3):
            for x in (X, X[:1]):
                error = int8(x) - model(x)
                assert float(10 * torch.log10(model(x).square().mean() / error.square().mean())) > 25
    assert sum(type(each).__name__.startswith("FakeQuantizedConv") for each in trained.modules()) == 2


def test_sizes_are_asked_for_before_a_change_in_place():
    def fact(y):
        n = y.shape[0]
        y.mul_(n)
        return y.shape[1]

    torch.manual_seed(0)
    model = Asks(fact).eval()
    prepared = fxq.prepare(model, X)
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))


def test_what_asks_behind_the_convolution_alone_goes_past_norm_and_activation():
    class Once(Asks):
        def forward(self, x):
            y = self.conv(x)
            rows = y.shape[2]
            return self.last(F.relu(self.norm(y))) * rows

    torch.manual_seed(0)
    model = Once(FACTS["shape"]).eval()
    prepared = fxq.prepare(model, X)
    assert next(unit.pattern for unit in prepared.plan.units) == "conv_bn_act"
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))


UNLIKE = {
    "stride": lambda s, x: s.last(F.relu(s.conv(x)[..., ::2])) * s.conv(x)[..., ::2].stride()[0],
    "order": lambda s, x: s.strided(s.conv(x)[..., ::2]),
    "dtype": lambda s, x: s.kinds((s.conv(x) * 3).long()),
    "statistics": lambda s, x: s.changed(s.conv(x)),
}


class Unlike(nn.Module):
    """What is asked of a value that its reader has another of."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.conv, self.norm, self.last, self.name = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), name

    def strided(self, y):
        n, kind = y.stride(), y.is_contiguous()
        return self.last(F.relu(y)) * n[0] * (1 if kind else 3)

    def kinds(self, y):
        kind = y.dtype
        return self.last(torch.tanh(y)) + torch.full((4,), 1.7).to(kind)

    def changed(self, y):
        n = y.shape[0]
        self.norm.running_mean.mul_(0.0).add_(1.0)
        return self.last(F.relu(self.norm(y))) * n

    def forward(self, x):
        return UNLIKE[self.name](self, x)


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.filterwarnings("ignore::fxquant.FxQuantWarning")
def test_what_the_reader_has_another_of_is_asked_where_it_was(name):
    torch.manual_seed(0)
    model = Unlike(name).eval()
    prepared = fxq.prepare(model, X)
    with torch.no_grad():
        assert torch.equal(prepared(X), model(X))
