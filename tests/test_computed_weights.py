"""Weights that a forward computes train as in float, and become the int8 weight that their value gives."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import fxquant as fxq
from fxquant.fake_quantize.defaults import default_qat_qconfig as DEFAULT

LOSS = 0.05
"""Of the float loss: 8 bits change it by less in the first step."""
COSINE = 0.98
"""Of all gradients: what clipping and rounding leave of their direction at 8 bits."""

WIDTH = 48
ROWS = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(2))
TOKENS = torch.randint(0, 60, (4, 6), generator=torch.Generator().manual_seed(3))


def rand(*shape: int) -> nn.Parameter:
    generator = torch.Generator().manual_seed(sum(shape))
    return nn.Parameter(torch.randn(*shape, generator=generator) * 0.2)


class Fn(nn.Module):
    """``function(self, first(x))``, with parts of its own."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Linear(WIDTH, WIDTH)
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.first(x))


class StandardizedConv2d(nn.Conv2d):
    """BiT's: each filter has mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ScaledStandardizedConv2d(nn.Conv2d):
    """NFNet's: with a gain that is learned."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.full((self.out_channels, 1, 1, 1), 1.2))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, unbiased=False)
        scale = torch.rsqrt(torch.clamp(variance * self.weight[0].numel(), min=1e-4)) * self.gain
        return F.conv2d(x, (self.weight - mean) * scale, self.bias)


class Conv1D(nn.Module):
    """GPT-2's: a linear layer whose weight lies the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = rand(WIDTH, 40), rand(40)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], 40)


class PartlyBiased(nn.Module):
    """Swin V2's: the middle third of the bias is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias.clone()
        bias[WIDTH : 2 * WIDTH].zero_()
        return F.linear(x, self.qkv.weight, bias)


class BiasesJoined(nn.Module):
    """BEiT's: the keys have no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias, self.v_bias = rand(WIDTH), rand(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.qkv.weight, torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias)))


class Flipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = rand(24, 16, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel.flip(-1))


class ScaledTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = rand(60, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.embedding(x, self.table * 2))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[None], x[None], x[None])[0]


class Masked(nn.Linear):
    """A mask by hand."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("mask", (self.weight.abs() > 0.05).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Skew(nn.Module):
    """A parametrization of the user's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu(1) - x.triu(1).transpose(0, 1)


def pruned() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    prune.l1_unstructured(layer, "weight", 0.4)
    prune.random_unstructured(layer, "bias", 0.4)
    return layer


def weight_norm(layer: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning, match="deprecated"):
        return nn.utils.weight_norm(layer)


def tied_head(spelling: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body = nn.Embedding(60, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return spelling(self.body(self.embedding(x)), self.embedding.weight)

    return Head()


def tied_modules() -> nn.Module:
    embedding, head = nn.Embedding(60, WIDTH), nn.Linear(WIDTH, 60, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, nn.Linear(WIDTH, WIDTH), head)


def behind(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.ReLU())


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 16, 1), *layers, nn.ReLU(), nn.Conv2d(24, 8, 1))


def custom(layer: nn.Module, name: str, kind: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, name, kind)
    return layer


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "x @ w.T": (lambda: Fn(lambda m, x: x @ m.w.T, w=rand(40, WIDTH)), ROWS),
    "x @ w": (lambda: Fn(lambda m, x: x @ m.w, w=rand(WIDTH, 40)), ROWS),
    "mm": (lambda: Fn(lambda m, x: torch.mm(x, m.w), w=rand(WIDTH, 40)), ROWS),
    "einsum": (lambda: Fn(lambda m, x: torch.einsum("bi,oi->bo", x, m.w), w=rand(40, WIDTH)), ROWS),
    "addmm": (lambda: Fn(lambda m, x: torch.addmm(m.b, x, m.w), w=rand(WIDTH, 40), b=rand(40)), ROWS),
    "a GPT-2 layer": (lambda: behind(Conv1D()), ROWS),
    "linear": (lambda: Fn(lambda m, x: F.linear(x, m.w, m.b), w=rand(40, WIDTH), b=rand(40)), ROWS),
    "a product": (lambda: Fn(lambda m, x: F.linear(x, m.w * m.g), w=rand(40, WIDTH), g=rand(40, 1)), ROWS),
    "a sum": (
        lambda: Fn(lambda m, x: F.linear(x, m.w + m.a @ m.b), w=rand(40, WIDTH), a=rand(40, 4), b=rand(4, WIDTH)),
        ROWS,
    ),
    "flipped": (lambda: images(Flipped()), IMAGES),
    "a part": (lambda: Fn(lambda m, x: F.linear(x, m.w[:40]), w=rand(60, WIDTH)), ROWS),
    "two parts": (
        lambda: Fn(lambda m, x: F.linear(x, m.w[:WIDTH]) * F.linear(x, m.w[WIDTH:]), w=rand(2 * WIDTH, WIDTH)),
        ROWS,
    ),
    "a table that is scaled": (lambda: ScaledTable(), TOKENS),
    "standardized": (lambda: images(StandardizedConv2d(16, 24, 3), nn.BatchNorm2d(24)), IMAGES),
    "standardized, scaled": (lambda: images(ScaledStandardizedConv2d(16, 24, 3)), IMAGES),
    "pruned": (lambda: behind(pruned()), ROWS),
    "masked": (lambda: behind(Masked()), ROWS),
    "weight norm": (lambda: behind(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))), ROWS),
    "spectral norm": (lambda: behind(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))), ROWS),
    "orthogonal": (lambda: behind(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))), ROWS),
    "a parametrization": (lambda: behind(custom(nn.Linear(WIDTH, WIDTH), "weight", Skew())), ROWS),
    "weight norm of a convolution": (lambda: images(parametrizations.weight_norm(nn.Conv2d(16, 24, 3))), IMAGES),
    "weight norm by a hook": (lambda: behind(weight_norm(nn.Linear(WIDTH, WIDTH))), ROWS),
    "spectral norm by a hook": (lambda: behind(nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))), ROWS),
    "a weight of another layer": (lambda: Fn(lambda m, x: F.linear(x, m.first.weight.t())), ROWS),
    "tied, linear": (lambda: tied_head(F.linear), TOKENS),
    "tied, matmul": (lambda: tied_head(lambda h, w: torch.matmul(h, w.t())), TOKENS),
    "tied, @": (lambda: tied_head(lambda h, w: h @ w.transpose(0, 1)), TOKENS),
    "tied, einsum": (lambda: tied_head(lambda h, w: torch.einsum("bth,vh->btv", h, w)), TOKENS),
    "tied modules": (tied_modules, TOKENS),
    "a bias that is changed in place": (lambda: behind(PartlyBiased()), ROWS),
    "a bias that is joined": (lambda: behind(BiasesJoined()), ROWS),
    "an attention": (lambda: behind(SelfAttention()), ROWS),
    "a slope": (lambda: Fn(lambda m, x: F.prelu(x, m.s), s=nn.Parameter(torch.tensor(0.3))), ROWS),
    "a norm": (
        lambda: Fn(lambda m, x: F.layer_norm(m.first(x), (WIDTH,), 1 + m.g, m.b), g=rand(WIDTH), b=rand(WIDTH)),
        ROWS,
    ),
}


ANOTHER_SPELLING = (
    *("x @ w", "mm", "addmm", "flipped", "two parts", "standardized, scaled", "a parametrization", "orthogonal"),
    *("weight norm of a convolution", "spectral norm by a hook", "tied, matmul", "tied, @", "tied, einsum"),
)
"""Of weights that are computed as those of another model here are."""


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in ANOTHER_SPELLING else ()) for name in MODELS]
)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, x = MODELS[request.param]
    return make().train(), x


def state_of(module: nn.Module) -> set[str]:
    return {name for name in module.state_dict() if "fake_quant" not in name}


def gradients(model: nn.Module, x: Tensor) -> tuple[float, dict[str, Tensor | None]]:
    """The loss of one step and the gradients of all parameters."""
    y = model(x)
    target = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)) * y.detach().std()
    loss = (y - target).square().mean()
    model.zero_grad()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def train(model: nn.Module, x: Tensor, steps: int = 3) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        gradients(model, x)
        optimizer.step()
    return model


@pytest.mark.one_in(2)
def test_the_first_step_is_that_of_the_float_model(case):
    model, x = case
    qat = fxq.prepare_qat(model, x)
    assert [name for name, _ in qat.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert state_of(qat) == state_of(model)
    assert all(parameter.requires_grad for parameter in qat.parameters())
    (loss, found), (float_loss, expected) = gradients(qat, x), gradients(model, x)
    assert loss == pytest.approx(float_loss, rel=LOSS)
    assert {n for n, grad in found.items() if grad is None} == {n for n, grad in expected.items() if grad is None}
    flat, float_flat = (torch.cat([g.flatten() for g in one.values() if g is not None]) for one in (found, expected))
    assert F.cosine_similarity(flat, float_flat, 0) >= COSINE


@pytest.mark.one_in(2)
def test_it_converts_to_the_weight_that_its_value_gives(case):
    model, x = case
    qat = train(fxq.prepare_qat(model, x), x).eval().apply(fxq.disable_observer)
    trained = copy.deepcopy(qat.state_dict())
    int8 = fxq.convert(qat, check=x)
    assert int8.parity.breaches == ()
    assert all(torch.equal(value, trained[name]) for name, value in qat.state_dict().items())
    with torch.no_grad():
        assert torch.equal(fxq.convert(qat, to="fake_quant")(x), qat(x))
    model.load_state_dict({name: trained[name] for name in model.state_dict()})
    plain = fxq.quantize(model.eval(), [x], fxq.get_default_qat_qconfig_mapping())
    assert set(int8.state_dict()) == set(plain.state_dict())
    scales = {name: value for name, value in plain.state_dict().items() if name.endswith("weight_scale")}
    for name, scale in scales.items():  # where training measured what it was left with, all integers are the same
        if torch.equal(int8.state_dict()[name], scale):
            weight = name.removesuffix("_scale")
            assert torch.equal(int8.state_dict()[weight], plain.state_dict()[weight]), name


def test_the_weight_is_that_of_post_training_quantization_where_the_scales_are():
    """With no step between, the moving average of a weight's range is its range."""
    torch.manual_seed(0)
    for name in ("a sum", "flipped", "pruned", "weight norm", "tied, @", "an attention"):
        make, x = MODELS[name]
        model = make().eval()
        qat = fxq.prepare_qat(model, x)
        qat(x)
        int8, plain = fxq.convert(qat).state_dict(), fxq.quantize(model, [x]).state_dict()
        weights = [key for key, value in plain.items() if value.dtype is torch.int8]
        assert weights
        for key in weights:
            assert torch.equal(int8[f"{key}_scale"], plain[f"{key}_scale"]), (name, key)
            assert torch.equal(int8[key], plain[key]), (name, key)


@pytest.mark.parametrize("name", ["pruned", "masked"])
def test_masks_stay_applied(name):
    torch.manual_seed(0)
    make, x = MODELS[name]
    model = make().train()
    mask = model.state_dict()["1.weight_mask" if name == "pruned" else "1.mask"]
    qat = train(fxq.prepare_qat(model, x), x, steps=5)
    int8 = fxq.convert(qat.eval()).get_submodule("1" if name == "pruned" else "linear")
    assert (mask == 0).sum() > 100
    assert not int8.weight[mask == 0].any()
    assert int8.weight[mask == 1].count_nonzero() > 1000


def test_ties_stay_tied():
    torch.manual_seed(0)
    for name in ("tied, linear", "tied, matmul", "tied, @", "tied, einsum"):
        make, x = MODELS[name]
        qat = train(fxq.prepare_qat(make().train(), x), x).eval().apply(fxq.disable_observer)
        tables = [key for key, value in qat.state_dict().items() if value.shape == (60, WIDTH)]
        assert tables == ["embedding.weight"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize(
    "name", ["standardized, scaled", "a bias that is changed in place", "spectral norm by a hook", "an attention"]
)
def test_copies_train_and_convert(name, copied):
    torch.manual_seed(0)
    make, x = MODELS[name]
    qat = train(fxq.prepare_qat(make().train(), x), x)
    twin = copied(qat)
    for each in (qat, twin):
        train(each, x).eval().apply(fxq.disable_observer)
    assert torch.equal(qat(x), twin(x))
    assert torch.equal(fxq.convert(qat)(x), fxq.convert(twin)(x))


def test_buffers_that_a_weight_is_made_of_may_change():
    """As an average of weights, which somebody keeps beside the training."""
    torch.manual_seed(0)
    model = Fn(lambda m, x: F.linear(x, m.w * m.scale, m.zero.clone().add_(m.shift)), w=rand(40, WIDTH))
    for name, size in (("scale", 1), ("zero", 40), ("shift", 40)):
        model.register_buffer(name, torch.ones(40, 1) if size == 1 else torch.zeros(size))
    qat = fxq.prepare_qat(model.train(), ROWS)
    qat(ROWS)
    qat.eval()
    before = qat(ROWS)
    qat.scale.mul_(0.5)
    qat.shift.add_(1.0)
    with torch.no_grad():
        model.scale.mul_(0.5)
        model.shift.add_(1.0)
        model.first.load_state_dict({name: qat.state_dict()[f"first.{name}"] for name in ("weight", "bias")})
        after, expected = qat(ROWS), model(ROWS)
    assert (after - before).abs().max() > 0.5
    assert (after - expected).square().mean() < 1e-3 * expected.square().mean()
    assert (fxq.convert(qat)(ROWS) - expected).square().mean() < 1e-3 * expected.square().mean()


def test_a_batch_norm_behind_a_computed_weight_is_folded():
    torch.manual_seed(0)
    make, x = MODELS["standardized"]
    qat = train(fxq.prepare_qat(make().train(), x), x)
    assert "factor" in next(node for node in qat.graph.nodes if node.name == "conv2d").kwargs
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fxq.convert(qat.eval()).modules())


def test_statistics_under_other_names_are_folded_and_go_on_averaging():
    class OwnNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.shift = nn.Parameter(torch.ones(24)), nn.Parameter(torch.zeros(24))
            self.register_buffer("mean", torch.zeros(24))
            self.register_buffer("var", torch.ones(24))

        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x, self.mean, self.var, self.gain * 2, self.shift, self.training, 0.1)

    torch.manual_seed(0)
    model = images(nn.Conv2d(16, 24, 3), OwnNorm()).train()
    qat = fxq.prepare_qat(model, IMAGES)
    (loss, _), (expected, _) = gradients(qat, IMAGES), gradients(model, IMAGES)
    assert loss == pytest.approx(expected, rel=LOSS)
    assert torch.allclose(qat.state_dict()["2.mean"], model.state_dict()["2.mean"], atol=0.01)  # of rounded values
    assert qat.state_dict()["2.mean"].abs().max() > 0.01
    assert state_of(qat) == state_of(model)
    int8 = fxq.convert(qat.eval().apply(fxq.disable_observer), check=IMAGES)
    assert int8.parity.breaches == ()
    assert [unit.pattern for unit in int8.quant_plan.units][1] == "conv_bn_act"


def test_a_layer_left_in_float_is_computed_too():
    torch.manual_seed(0)
    make, x = MODELS["a sum"]
    rules = fxq.get_default_qat_qconfig_mapping().set_object_type(F.linear, None).set_module_name("first", DEFAULT)
    model = make().train()
    qat = fxq.prepare_qat(model, x, rules)
    assert [name for name, _ in qat.named_parameters()] == [name for name, _ in model.named_parameters()]
    train(qat, x).eval().apply(fxq.disable_observer)
    int8 = fxq.convert(qat)
    assert (int8(x) - qat(x)).abs().max() < 0.05 * qat(x).abs().max()
