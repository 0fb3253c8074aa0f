"""Attention in each spelling, and embeddings."""

from __future__ import annotations

from tests.fuzz.ingredients.norms import has_rows
from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope


def tokens(s: Scope) -> str:
    """Values ``[N, T, C]``; a map's places are tokens, too."""
    try:
        return s.pick(3, where=lambda value: value.shape[-1] > 1)
    except NoValueError:
        return s.give(f"{s.pick(4)}.flatten(2).transpose(1, 2)")


def heads_of(s: Scope, width: int) -> int:
    return s.choose(*(n for n in (1, 2, 4) if width % n == 0))


def multihead(s: Scope) -> None:
    x = tokens(s)
    width = s.shape(x)[-1]
    options = f"{width}, {heads_of(s, width)}, batch_first=True{s.choose('', ', bias=False')}"
    layer = s.module(f"nn.MultiheadAttention({options})")
    if s.happens():
        s.give(f"{layer}({x}, {x}, {x}, need_weights=False)[0]")
    else:
        s.gives(f"{layer}({x}, {x}, {x})", 2)


def dot_product(s: Scope) -> None:
    x = tokens(s)
    width = s.shape(x)[-1]
    q, k, v = (s.give(f"{s.module(f'nn.Linear({width}, {width})')}({x})") for _ in range(3))
    heads = heads_of(s, width)
    if heads > 1:
        q, k, v = (s.give(f"{y}.unflatten(-1, ({heads}, -1)).transpose(1, 2)") for y in (q, k, v))
    y = s.give(f"F.scaled_dot_product_attention({q}, {k}, {v}{s.choose('', ', is_causal=True')})")
    if heads > 1:
        s.give(f"{y}.transpose(1, 2).flatten(2)")


def by_hand(s: Scope) -> None:
    x = tokens(s)
    width = s.shape(x)[-1]
    y = s.give(f"{s.module(f'nn.Linear({width}, {3 * width})')}({x})")
    if s.happens():
        q, k, v = s.gives(f"{y}.chunk(3, -1)", 3)
    else:
        y = s.give(f"{y}.reshape({x}.shape[0], {x}.shape[1], 3, {width}).permute(2, 0, 1, 3)")
        q, k, v = s.gives(f"{y}.unbind(0)", 3)
    scores = s.give(f"torch.softmax({q} @ {k}.transpose(-2, -1) * {width**-0.5}, -1)")
    s.give(f"{scores} @ {v}")


def transformer(s: Scope) -> None:
    x = tokens(s)
    if not has_rows(s.values[x]):
        raise NoValueError
    width = s.shape(x)[-1]
    options = f"{width}, {heads_of(s, width)}, 8, dropout=0.0, batch_first=True{s.choose('', ', norm_first=True')}"
    s.give(f"{s.module(f'nn.TransformerEncoderLayer({options})')}({x})")


def embedding(s: Scope) -> None:
    if not s.indices:
        raise NoValueError
    name = s.choose(*s.indices)
    high = next(each.high for each in s.inputs if each.name == name)
    kind = s.choose("Embedding", "Embedding", "EmbeddingBag")
    y = s.give(f"{s.module(f'nn.{kind}({high}, {s.choose(4, 8)})')}({name})")
    if s.happens(0.3):
        s.give(f"{s.module(f'nn.Linear({s.shape(y)[-1]}, 4)')}({y})")


INGREDIENTS = (
    Ingredient("multihead attention", multihead, (3, 4)),
    Ingredient("scaled_dot_product_attention", dot_product, (3, 4)),
    Ingredient("attention by hand", by_hand, (3, 4)),
    Ingredient("transformer layer", transformer, (3, 4)),
    Ingredient("embedding", embedding, (2, 3), indices=True),
)
