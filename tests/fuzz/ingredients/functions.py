"""Functions of one value, and gates made of them."""

from __future__ import annotations

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope

CLAMPS = (
    *("F.relu({})", "{}.relu()", "torch.relu({})", "F.relu6({})", "F.hardtanh({})", "F.hardtanh({}, -0.5, 2.0)"),
    *("{}.clamp(-1, 1)", "torch.clamp({}, min=0)", "{}.clamp(max=1.5)", "torch.clip({}, -0.5, 0.5)", "{}.clamp_min(0)"),
)
SMOOTH = (
    *("torch.sigmoid({})", "{}.sigmoid()", "{}.tanh()", "torch.tanh({})", "F.silu({})", "F.gelu({})"),
    *("F.gelu({}, approximate='tanh')", "F.hardswish({})", "F.hardsigmoid({})", "F.mish({})", "F.elu({})"),
    *("F.elu({}, alpha=0.5)", "F.selu({})", "F.celu({}, 0.7)", "F.softplus({})", "F.softsign({})", "F.logsigmoid({})"),
    *("torch.erf({})", "F.leaky_relu({}, 0.2)", "F.leaky_relu({})", "F.tanhshrink({})"),
)
STEEP = ("F.hardshrink({}, 0.05)", "F.softshrink({}, 0.3)", "F.threshold({}, 0.05, 0.0)", "{}.abs()", "{} ** 2")
MODULES = (
    *("nn.ReLU()", "nn.ReLU6()", "nn.Sigmoid()", "nn.Tanh()", "nn.SiLU()", "nn.GELU()", "nn.Hardswish()", "nn.Mish()"),
    *("nn.Hardsigmoid()", "nn.ELU()", "nn.LeakyReLU(0.1)", "nn.PReLU()", "nn.Softplus()", "nn.Hardtanh()", "nn.CELU()"),
)
NUMBERS = ("{} * 0.5", "{} + 1", "2 - {}", "{} / 3", "-{}", "{} * 3 + 0.5", "{}.mul(2)", "0.25 * {}", "{}.neg()")


def of_one(*forms: str) -> Ingredient:
    def build(s: Scope) -> None:
        s.give(s.choose(*forms).format(s.pick(2, 3, 4, 5)))

    return Ingredient("", build, (2, 3, 4, 5))


def named(name: str, row: Ingredient) -> Ingredient:
    return Ingredient(name, row.build, row.ranks)


def module(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5)
    s.give(f"{s.module(s.choose(*MODULES))}({x})")


def prelu(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    s.give(f"{s.module(f'nn.PReLU({s.shape(x)[1]})')}({x})")


def softmax(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    axis = s.axis(x)
    s.give(s.choose(f"torch.softmax({x}, {axis})", f"F.softmax({x}, dim={axis})", f"{x}.softmax({axis})"))


def glu(s: Scope) -> None:
    x = s.pick(2, 3, 4, where=lambda value: any(size % 2 == 0 for size in value.shape[1:]))
    axis = s.choose(*(axis for axis, size in enumerate(s.shape(x)) if size % 2 == 0 and axis))
    s.give(s.choose(f"F.glu({x}, {axis})", f"{s.module(f'nn.GLU({axis})')}({x})"))


def gated(s: Scope) -> None:
    """A layer cut into a value and its gate."""
    x = s.pick(2, 3, 4, where=lambda value: value.shape[-1] > 1)
    width = s.choose(2, 4, 8)
    y = s.give(f"{s.module(f'nn.Linear({s.shape(x)[-1]}, {2 * width})')}({x})")
    a, b = s.gives(f"{y}.chunk(2, -1)", 2)
    gate = s.choose("F.silu({})", "torch.sigmoid({})", "F.gelu({})", "torch.tanh({})").format(b)
    z = s.give(f"{a} * {gate}")
    if s.happens():
        s.give(f"{s.module(f'nn.Linear({width}, {s.choose(3, 8)})')}({z})")


def swish(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5)
    s.give(s.choose(f"{x} * torch.sigmoid({x})", f"{x} * F.hardsigmoid({x})", f"torch.sigmoid({x}).mul({x})"))


def squeeze_excite(s: Scope) -> None:
    """Channels weighed by what their means say; sometimes those of a slice of them."""
    x = s.pick(4)
    channels = s.shape(x)[1]
    if channels > 3 and s.happens(0.4):
        x, channels = s.give(f"{x}[:, {channels // 2}:]"), channels - channels // 2
    mean = s.choose(f"{x}.mean((2, 3), keepdim=True)", f"F.adaptive_avg_pool2d({x}, 1)")
    first, second = (s.module(f"nn.Conv2d({a}, {b}, 1)") for a, b in ((channels, 4), (4, channels)))
    gate = s.give(f"{s.choose('torch.sigmoid', 'F.hardsigmoid')}({second}(F.relu({first}({mean}))))")
    s.give(s.choose(f"{x} * {gate}", f"{gate} * {x}"))


def dropout(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    module = s.choose("nn.Dropout(0.0)", "nn.Identity()")
    s.give(s.choose(f"{s.module(module)}({x})", f"F.dropout({x}, 0.0, self.training)", f"{x}.contiguous()"))


def masked(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    if s.shape(x)[-1] < 2:
        raise NoValueError
    s.give(s.choose(f"{x}.masked_fill({x} < 0, 0.0)", f"torch.where({x} > 0, {x}, {x} * 0.1)"))


INGREDIENTS = (
    named("clamp", of_one(*CLAMPS)),
    named("smooth function", of_one(*SMOOTH)),
    named("steep function", of_one(*STEEP)),
    named("arithmetic with a number", of_one(*NUMBERS)),
    Ingredient("activation module", module, (2, 3, 4, 5)),
    Ingredient("PReLU per channel", prelu, (2, 3, 4)),
    Ingredient("softmax", softmax, (2, 3, 4)),
    Ingredient("GLU", glu, (2, 3, 4)),
    Ingredient("gated layer", gated, (2, 3, 4)),
    Ingredient("x * sigmoid(x)", swish, (2, 3, 4)),
    Ingredient("squeeze and excite", squeeze_excite, (4,)),
    Ingredient("what does nothing", dropout, (2, 3, 4)),
    Ingredient("choice by a mask", masked, (2, 3, 4)),
)
