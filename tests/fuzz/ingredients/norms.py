"""Norms: batch, layer, group, instance, RMS."""

from __future__ import annotations

from torch import Tensor

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import Scope, has_statistics


def has_rows(x: Tensor) -> bool:
    """Whether a norm of each row has something to tell: of two values it gives ±1 whatever they are."""
    return x.shape[-1] > 2


def has_maps(x: Tensor) -> bool:
    """The same of a norm of each channel."""
    return x.dim() > 2 and x[0, 0].numel() > 2


def batch_norm(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5, where=has_statistics)
    dims = {2: 1, 3: 1, 4: 2, 5: 3}[s.rank(x)]
    affine = "" if s.happens(0.8) else ", affine=False"
    s.give(f"{s.module(f'nn.BatchNorm{dims}d({s.shape(x)[1]}{affine})')}({x})")


def written_out(s: Scope) -> None:
    """One number for each channel behind a convolution: what a frozen batch norm computes."""
    x = s.pick(3, 4, 5)
    dims, out = s.rank(x) - 2, s.choose(1, 3, 8)
    y = s.give(f"{s.module(f'nn.Conv{dims}d({s.shape(x)[1]}, {out}, 1)')}({x})")
    gain, shift = s.gain(out, *[1] * dims), s.parameter(out, *[1] * dims)
    s.give(
        s.choose(
            f"{y} * {gain} + {shift}",
            f"F.relu({shift} + {gain} * {y})",
            f"({y} - {shift}) * {gain}[None] + {shift}[None]",
            f"({y} * {gain} - {shift}) * {y}",
        )
    )


def layer_norm(s: Scope) -> None:
    x = s.pick(2, 3, 4, where=has_rows)
    size = s.shape(x)[-1]
    s.give(s.choose(f"{s.module(f'nn.LayerNorm({size})')}({x})", f"F.layer_norm({x}, ({size},))"))


def channel_layer_norm(s: Scope) -> None:
    """ConvNeXt's: over the channels of a map."""
    x = s.pick(4, where=lambda value: has_rows(value.movedim(1, -1)))
    norm = s.module(f"nn.LayerNorm({s.shape(x)[1]}, eps=1e-6)")
    s.give(f"{norm}({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)")


def group_norm(s: Scope) -> None:
    x = s.pick(3, 4, 5, where=lambda value: value.shape[1] > 1 and has_maps(value))
    channels = s.shape(x)[1]
    groups = s.choose(*(n for n in range(1, channels) if channels % n == 0))
    s.give(f"{s.module(f'nn.GroupNorm({groups}, {channels})')}({x})")


def instance_norm(s: Scope) -> None:
    x = s.pick(3, 4, 5, where=has_maps)
    options = s.choose("", ", affine=True", ", affine=True, track_running_stats=True")
    s.give(f"{s.module(f'nn.InstanceNorm{s.rank(x) - 2}d({s.shape(x)[1]}{options})')}({x})")


def rms_norm(s: Scope) -> None:
    x = s.pick(2, 3, 4, where=has_rows)
    size = s.shape(x)[-1]
    s.give(
        s.choose(
            f"{s.module(f'nn.RMSNorm({size})')}({x})",
            f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-5) * {s.gain(size)}",
        )
    )


def normalize(s: Scope) -> None:
    x = s.pick(2, 3, 4, where=has_rows)
    s.give(f"F.normalize({x}, dim=-1)")


INGREDIENTS = (
    Ingredient("batch norm", batch_norm, (2, 3, 4, 5)),
    Ingredient("norm that is written out", written_out, (3, 4, 5)),
    Ingredient("layer norm", layer_norm, (2, 3, 4)),
    Ingredient("layer norm over channels", channel_layer_norm, (4,)),
    Ingredient("group norm", group_norm, (3, 4, 5)),
    Ingredient("instance norm", instance_norm, (3, 4, 5)),
    Ingredient("RMS norm", rms_norm, (2, 3, 4)),
    Ingredient("normalize", normalize, (2, 3, 4)),
)
