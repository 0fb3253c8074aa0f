"""Convolutions of every geometry, in one to three dimensions, plain and transposed."""

from __future__ import annotations

from functools import partial

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope, has_statistics

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16)


def sizes(s: Scope, dims: int, *options: int) -> int | tuple[int, ...]:
    """One number for all dimensions, or one for each."""
    return s.choose(*options) if s.happens() else tuple(s.choose(*options) for _ in range(dims))


def groups_of(s: Scope, channels: int) -> int:
    return s.choose(*(n for n in range(1, channels + 1) if channels % n == 0))


def convolution(s: Scope, dims: int, **fixed: object) -> None:
    x = s.pick(dims + 2)
    channels = s.shape(x)[1]
    groups = groups_of(s, channels) if s.happens(0.4) else 1
    out = groups * s.choose(1, 2, 3) if groups > 1 else s.choose(*CHANNELS)
    options = {"groups": groups, "bias": s.happens(0.7), **fixed}
    if "padding" not in options and s.happens():
        options["padding"] = sizes(s, dims, 0, 1, 1, 2)
    if options.get("padding") != "same" and s.happens(0.4):
        options["stride"] = sizes(s, dims, 1, 2, 2, 3)
    if s.happens(0.3):
        options["dilation"] = sizes(s, dims, 1, 2)
    s.give(f"{s.module(call(f'Conv{dims}d', channels, out, sizes(s, dims, 1, 2, 3, 3, 4), **options))}({x})")


def call(kind: str, *args: object, **options: object) -> str:
    """A call that leaves out what is usual."""
    usual = {"groups": 1, "bias": True, "padding_mode": "zeros", "stride": 1, "dilation": 1, "padding": 0}
    written = [f"{name}={value!r}" for name, value in options.items() if usual.get(name, ...) != value]
    return f"nn.{kind}({', '.join([*map(repr, args), *written])})"


def padded(s: Scope) -> None:
    """A mode other than zeros; torch has no reflection in three dimensions of some sizes, which running it shows."""
    dims = s.choose(1, 2, 2, 3)
    convolution(s, dims, padding=sizes(s, dims, 1, 2), padding_mode=s.choose(*PADDING_MODES[1:]))


def same(s: Scope) -> None:
    convolution(s, s.choose(1, 2, 2, 3), padding="same", padding_mode=s.choose(*PADDING_MODES))


def depthwise(s: Scope) -> None:
    dims = s.choose(1, 2, 2, 3)
    x = s.pick(dims + 2, where=lambda value: value.shape[1] > 1)
    channels, kernel = s.shape(x)[1], s.choose(2, 3, 5)
    options = {"groups": channels, "padding": kernel // 2, "stride": s.choose(1, 2), "bias": s.happens()}
    s.give(f"{s.module(call(f'Conv{dims}d', channels, channels * s.choose(1, 1, 2), kernel, **options))}({x})")


def transposed(s: Scope, dims: int) -> None:
    x = s.pick(dims + 2)
    channels = s.shape(x)[1]
    groups = groups_of(s, channels) if s.happens(0.3) else 1
    options = {"padding": sizes(s, dims, 0, 1), "groups": groups, "bias": s.happens(0.7)}
    kernel = sizes(s, dims, 1, 2, 3)
    options["stride"] = sizes(s, dims, 1, 2, 3)
    if s.happens(0.3):
        options["dilation"] = sizes(s, dims, 1, 2)
    if s.happens(0.3):
        options["output_padding"] = 1
    out = groups * s.choose(1, 2, 3, 4)
    s.give(f"{s.module(call(f'ConvTranspose{dims}d', channels, out, kernel, **options))}({x})")


def separable(s: Scope) -> None:
    """Depthwise, norm and clamp, pointwise: MobileNet's."""
    x = s.pick(4, where=has_statistics)
    channels = s.shape(x)[1]
    d = s.give(f"{s.module(call('Conv2d', channels, channels, 3, padding=1, groups=channels, bias=False))}({x})")
    n = s.give(f"{s.module(f'nn.BatchNorm2d({channels})')}({d})")
    a = s.give(s.choose("F.relu6({})", "F.relu({})", "F.hardswish({})").format(n))
    s.give(f"{s.module(call('Conv2d', channels, s.choose(*CHANNELS), 1))}({a})")


def linear(s: Scope) -> None:
    x = s.pick(2, 3, 4, where=lambda value: value.shape[-1] > 1)
    options = {"bias": s.happens(0.7)}
    layer = s.module(call("Linear", s.shape(x)[-1], s.choose(1, 3, 5, 8, 16), **options))
    y = s.give(f"{layer}({x})")
    if s.happens(0.3):
        s.give(f"F.relu({y})")


def block(s: Scope) -> None:
    """Convolution, batch norm and an activation, in each spelling; sometimes with what does nothing between them."""
    dims = s.choose(1, 2, 2, 3)
    x = s.pick(dims + 2, where=has_statistics)
    out = s.choose(*CHANNELS)
    conv = s.module(call(f"Conv{dims}d", s.shape(x)[1], out, 3, padding=1, bias=s.happens()))
    norm = s.module(f"nn.BatchNorm{dims}d({out})")
    if s.happens(0.2):
        idle = s.choose("{}.contiguous()", "F.dropout({}, 0.0, self.training)", "{}.float()", "{}.clone()")
        y = s.give(f"{norm}({idle.format(f'{conv}({x})')})")
    else:
        y = s.give(f"{norm}({conv}({x}))")
    s.give(s.choose("F.relu({})", "{}.relu()", "torch.relu({})", "F.relu6({})", "{}.clamp(0, 2)").format(y))


def unbatched(s: Scope) -> None:
    """A whole batch taken as one picture without a batch."""
    x = s.pick(3, where=lambda value: value.shape[0] > 1)
    batch = s.shape(x)[0]
    if batch != s.shape(s.inputs[0].name)[0]:
        raise NoValueError
    s.give(f"{s.module(call('Conv2d', s.shape(x)[1], 3, 1))}({x}.unsqueeze(-1))")


INGREDIENTS = (
    Ingredient("conv1d", partial(convolution, dims=1), (3,)),
    Ingredient("conv2d", partial(convolution, dims=2), (4,)),
    Ingredient("conv3d", partial(convolution, dims=3), (5,)),
    Ingredient("conv of a padding mode", padded, (3, 4, 5)),
    Ingredient("conv that keeps the size", same, (3, 4, 5)),
    Ingredient("depthwise conv", depthwise, (3, 4, 5)),
    Ingredient("transposed conv1d", partial(transposed, dims=1), (3,)),
    Ingredient("transposed conv2d", partial(transposed, dims=2), (4,)),
    Ingredient("transposed conv3d", partial(transposed, dims=3), (5,)),
    Ingredient("separable conv", separable, (4,)),
    Ingredient("conv, norm, activation", block, (3, 4, 5)),
    Ingredient("linear", linear, (2, 3, 4)),
    Ingredient("conv of what gained an axis", unbatched, (3,)),
)
