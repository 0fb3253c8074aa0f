"""One module in two places, tied weights, and changes in place."""

from __future__ import annotations

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope, has_statistics


def module_twice(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    width = s.shape(x)[-1]
    layer = s.module(f"nn.Linear({width}, {width})")
    y = s.give(f"{layer}({x})")
    s.give(s.choose(f"{layer}(F.relu({y}))", f"{y} + {layer}({x} * 0.5)", f"{layer}({y})"))


def conv_twice(s: Scope) -> None:
    x = s.pick(3, 4)
    dims, channels = s.rank(x) - 2, s.shape(x)[1]
    layer = s.module(f"nn.Conv{dims}d({channels}, {channels}, 3, padding=1)")
    y = s.give(f"{layer}({x})")
    s.give(f"{layer}({y}) + {y}")


def relu_twice(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    width = s.shape(x)[-1]
    relu = s.module(s.choose("nn.ReLU()", "nn.ReLU6()", "nn.GELU()", "nn.ReLU(inplace=True)", "nn.Hardswish()"))
    first, second = (s.module(f"nn.Linear({width}, {width})") for _ in range(2))
    y = s.give(f"{relu}({first}({x}))")
    s.give(f"{relu}({second}({y}))")


def tied(s: Scope) -> None:
    """A head that shares the weight of a layer, or of an embedding."""
    x = s.pick(2, 3, where=lambda value: value.shape[-1] > 1)
    width, out = s.shape(x)[-1], s.choose(3, 4)
    first, second = s.module(f"nn.Linear({width}, {out})"), s.module(f"nn.Linear({width}, {out})")
    s.member_line(f"{second}.weight = {first}.weight")
    y = s.give(f"{first}({x})")
    s.give(s.choose(f"{y} + {second}({x} * 0.5)", f"{y} @ {first}.weight", f"F.linear({y}, {first}.weight.t())"))


def in_place(s: Scope, *forms: str) -> None:
    """A change of a value that is no input's. What was read from it before sees that or not, as torch says."""
    x = s.pick(2, 3, 4, where=lambda value: value.is_contiguous())
    y = s.give(s.choose("{} * 1.5", "{} + 0.25", "{}.clone()", "F.relu({})").format(x))
    if s.belongs_to_an_input(y):
        raise NoValueError
    if s.happens(0.2):
        s.give(f"{y}[:, :1]" if s.rank(y) > 1 else f"{y} * 2")  # a view that sees the change
    s.run(s.choose(*forms).format(y, x))
    if s.happens():
        s.give(f"{y} * 0.5")


def arithmetic_in_place(s: Scope) -> None:
    in_place(s, "{}.add_({})", "{}.mul_({})", "{} += 1", "{} *= 0.5", "{} += {}", "{} -= 0.25")


def function_in_place(s: Scope) -> None:
    in_place(s, "{}.relu_()", "F.relu({}, inplace=True)", "{}.clamp_(-1, 1)", "{}.sigmoid_()", "F.relu_({})")


def part_in_place(s: Scope) -> None:
    in_place(s, "{}[:, :1] = 0", "{}[..., ::2] += 1", "{}[:, :1].mul_(2)", "{}[:, -1] = {}[:, 0]", "{}[:, :1].zero_()")


def layer_in_place(s: Scope) -> None:
    x = s.pick(4, where=has_statistics)
    out = s.choose(2, 4, 8)
    conv = s.module(f"nn.Conv2d({s.shape(x)[1]}, {out}, 3, padding=1, bias=False)")
    norm, act = s.module(f"nn.BatchNorm2d({out})"), s.module("nn.ReLU(inplace=True)")
    s.give(f"{act}({norm}({conv}({x})))")


INGREDIENTS = (
    Ingredient("linear layer twice", module_twice, (2, 3, 4)),
    Ingredient("convolution twice", conv_twice, (3, 4)),
    Ingredient("one activation in two places", relu_twice, (2, 3, 4)),
    Ingredient("tied weight", tied, (2, 3)),
    Ingredient("arithmetic in place", arithmetic_in_place, (2, 3, 4)),
    Ingredient("function in place", function_in_place, (2, 3, 4)),
    Ingredient("part in place", part_in_place, (2, 3, 4)),
    Ingredient("activation module in place", layer_in_place, (4,)),
)
