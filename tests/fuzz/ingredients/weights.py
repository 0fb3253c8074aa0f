"""Weights that forward computes, or that are no layer's."""

from __future__ import annotations

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import Scope


def of_rows(s: Scope) -> tuple[str, int]:
    x = s.pick(2, 3, where=lambda value: value.shape[-1] > 1)
    return x, s.shape(x)[-1]


def function_of_weight(s: Scope) -> None:
    x, width = of_rows(s)
    out = s.choose(3, 4, 8)
    if s.happens():
        w = s.parameter(out, width)
        s.give(
            s.choose(
                f"F.linear({x}, {w})",
                f"F.linear({x}, {w}, {s.parameter(out)})",
                f"{x} @ {w}.T",
                f"torch.matmul({x}, {w}.t())",
                f"torch.einsum('...i,oi->...o', {x}, {w})",
            )
        )
    else:
        w = s.parameter(width, out)
        s.give(s.choose(f"{x} @ {w}", f"torch.matmul({x}, {w}) + {s.parameter(out)}", f"torch.tensordot({x}, {w}, 1)"))


def addmm(s: Scope) -> None:
    """GPT-2's layer."""
    x, width = of_rows(s)
    out = s.choose(3, 4, 8)
    w, b = s.parameter(width, out), s.parameter(out)
    s.give(f"torch.addmm({b}, {x}.reshape(-1, {width}), {w}).reshape(*{x}.shape[:-1], {out})")


def scaled(s: Scope) -> None:
    x, width = of_rows(s)
    out = s.choose(3, 4, 8)
    w = s.parameter(out, width)
    weight = s.choose(
        f"{w} * {s.parameter(out, 1)}",
        f"{w} * {s.choose(0.5, 2.0)}",
        f"torch.tanh({w})",
        f"{w} / {w}.norm(dim=1, keepdim=True)",
        f"{w}.flip(-1)",
        f"{w} + {s.parameter(out, 2)} @ {s.parameter(2, width)}",
        f"{w} * ({w}.abs() > 0.1)",
    )
    s.give(f"F.linear({x}, {weight})")


def scaled_kernel(s: Scope) -> None:
    """Weight standardization and its kin, of convolutions."""
    x = s.pick(3, 4)
    dims, channels, out = s.rank(x) - 2, s.shape(x)[1], s.choose(2, 4, 8)
    w = s.parameter(out, channels, *(3,) * dims)
    axes = tuple(range(1, dims + 2))
    weight = s.choose(
        f"({w} - {w}.mean({axes}, keepdim=True)) / ({w}.std({axes}, keepdim=True) + 1e-4)",
        f"{w}.flip(-1)",
        f"{w} * {s.parameter(out, *(1,) * (dims + 1))}",
        w,
        f"{w}.transpose(-1, -2)" if dims == 2 else w,
    )
    s.give(f"F.conv{dims}d({x}, {weight}, padding=1)")


def normed(s: Scope) -> None:
    """A parametrization of torch."""
    x = s.pick(2, 3, where=lambda value: value.shape[-1] > 1)
    layer = f"nn.Linear({s.shape(x)[-1]}, {s.choose(3, 4)})"
    s.give(f"{s.module(f'nn.utils.parametrizations.weight_norm({layer})')}({x})")


def added_parameter(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    size = s.shape(x)[-1]
    s.give(s.choose(f"{x} + {s.parameter(size)}", f"{x} * {s.gain(size)}", f"{x} - {s.parameter(size)}"))


def layer_scale(s: Scope) -> None:
    x = s.pick(4)
    channels = s.shape(x)[1]
    p = s.parameter(channels, 1, 1)
    s.give(f"{s.module(f'nn.Conv2d({channels}, {channels}, 1)')}({x}) * {p} + {x}")


INGREDIENTS = (
    Ingredient("function of a weight", function_of_weight, (2, 3)),
    Ingredient("addmm", addmm, (2, 3)),
    Ingredient("computed weight of a linear layer", scaled, (2, 3)),
    Ingredient("computed weight of a convolution", scaled_kernel, (3, 4)),
    Ingredient("weight norm", normed, (2, 3)),
    Ingredient("parameter beside an activation", added_parameter, (2, 3, 4)),
    Ingredient("layer scale", layer_scale, (4,)),
)
