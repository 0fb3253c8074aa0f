"""Pools, means, interpolation and padding."""

from __future__ import annotations

from tests.fuzz.ingredients.convolutions import sizes
from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import Scope

MAPS = (3, 4, 5)


def dims_of(s: Scope, x: str) -> int:
    return s.rank(x) - 2


def max_pool(s: Scope) -> None:
    x = s.pick(*MAPS)
    n = dims_of(s, x)
    options = {"stride": sizes(s, n, 1, 2, 3), "padding": s.choose(0, 0, 1), "ceil_mode": s.happens(0.3)}
    if s.happens(0.3):
        options["dilation"] = 2
    written = ", ".join(f"{name}={value!r}" for name, value in options.items())
    kernel = sizes(s, n, 2, 3)
    form = s.choose(f"F.max_pool{n}d({x}, {kernel}, {written})", f"nn.MaxPool{n}d({kernel}, {written})")
    s.give(form if form.startswith("F.") else f"{s.module(form)}({x})")


def avg_pool(s: Scope) -> None:
    x = s.pick(*MAPS)
    n = dims_of(s, x)
    options = {
        "stride": sizes(s, n, 1, 2, 3),
        "padding": s.choose(0, 1),
        "ceil_mode": s.happens(0.3),
        "count_include_pad": s.happens(),
    }
    if n > 1 and s.happens(0.2):
        options["divisor_override"] = s.choose(2, 5)
    written = ", ".join(f"{name}={value!r}" for name, value in options.items())
    s.give(f"F.avg_pool{n}d({x}, {sizes(s, n, 2, 3)}, {written})")


def adaptive(s: Scope, kind: str) -> None:
    x = s.pick(*MAPS)
    n = dims_of(s, x)
    size = sizes(s, n, 1, 1, 2, 3) if s.happens(0.8) or n == 1 else (None, *(s.choose(1, 2) for _ in range(n - 1)))
    s.give(f"F.adaptive_{kind}_pool{n}d({x}, {size})")


def adaptive_avg(s: Scope) -> None:
    adaptive(s, "avg")


def adaptive_max(s: Scope) -> None:
    adaptive(s, "max")


def mean(s: Scope) -> None:
    x = s.pick(3, 4, 5)
    axes = s.choose(-1, s.axis(x), tuple(range(2, s.rank(x))))
    keep = s.choose("", ", keepdim=True")
    s.give(f"{x}.{s.choose('mean', 'mean', 'sum', 'amax', 'amin')}({axes}{keep})")


def resize(s: Scope) -> None:
    x = s.pick(*MAPS)
    n = dims_of(s, x)
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}[n]
    mode = s.choose("nearest", smooth, *(("bicubic",) if n == 2 else ()))
    corners = f", align_corners={s.happens()}" if mode != "nearest" else ""
    size = f"scale_factor={s.choose(2, 2, 1.5, 0.5)}" if s.happens() else f"size={s.choose(1, 3, 5)}"
    s.give(f"F.interpolate({x}, {size}, mode={mode!r}{corners})")


def pad(s: Scope) -> None:
    x = s.pick(2, *MAPS)
    n = max(dims_of(s, x), 1)
    widths = tuple(s.choose(0, 1, 2) for _ in range(2 * s.rng.randint(1, n)))
    if s.happens(0.2):
        widths = (*widths[:-1], -1)
    if s.happens(0.6) or s.rank(x) == 2:
        s.give(f"F.pad({x}, {widths}{s.choose('', ', value=0.5', ', value=-1.0')})")
    else:
        s.give(f"F.pad({x}, {tuple(s.choose(0, 1) for _ in range(2 * n))}, mode={s.choose('reflect', 'replicate')!r})")


def shuffle(s: Scope) -> None:
    if s.happens():
        x = s.pick(4, where=lambda value: value.shape[1] % 4 == 0)
        s.give(f"F.pixel_shuffle({x}, 2)")
    else:
        x = s.pick(4, where=lambda value: value.shape[2] % 2 == 0 and value.shape[3] % 2 == 0)
        s.give(f"F.pixel_unshuffle({x}, 2)")


INGREDIENTS = (
    Ingredient("max pool", max_pool, MAPS),
    Ingredient("average pool", avg_pool, MAPS),
    Ingredient("adaptive average pool", adaptive_avg, MAPS),
    Ingredient("adaptive max pool", adaptive_max, MAPS),
    Ingredient("mean, sum, amax, amin", mean, (3, 4, 5)),
    Ingredient("interpolate", resize, MAPS),
    Ingredient("pad", pad, (2, *MAPS)),
    Ingredient("pixel shuffle", shuffle, (4,)),
)
