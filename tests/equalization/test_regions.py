"""Regions: which layers make a value, which read it, and why its channels can or cannot be scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.equalization.channels import Channels
from fxquant.equalization.regions import find_regions
from fxquant.plan.region import FIXED, Region
from tests.sampling import one_of

IMAGE = torch.randn(2, 3, 8, 8)
INPUT = "it is an input of the model"
OUTPUT = "it is an output of the model"
GATE = ("b", "", "0/4", "no factor passes through sigmoid (sigmoid)")


class Net(nn.Module):
    """Layers by name, and a forward that uses them."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def conv(inputs: int, outputs: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def regions(model: nn.Module, x: Tensor = IMAGE, **options: Any) -> tuple[Region, ...]:
    prepared = fxq.prepare(model.eval(), x)
    return find_regions(prepared.graph_module, prepared.example_args, prepared.example_kwargs, **options)


def rows(model: nn.Module, x: Tensor = IMAGE, **options: Any) -> list[tuple[str, str, str, str]]:
    """Sources, sinks, channels and the reason of each region."""
    return [
        (
            " ".join(end.path for end in region.sources),
            " ".join(end.path for end in region.sinks),
            f"{region.channels}/{region.total}",
            region.reason,
        )
        for region in regions(model, x, **options)
    ]


def inner(model: nn.Module, x: Tensor = IMAGE, **options: Any) -> list[tuple[str, str, str, str]]:
    """``rows`` without those of the model's input and output."""
    return [row for row in rows(model, x, **options) if row[3] not in (INPUT, OUTPUT)]


def test_a_chain():
    model = nn.Sequential(conv(3, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5))
    assert rows(model) == [("", "0", "0/3", INPUT), ("0", "4", "4/4", ""), ("4", "", "0/5", OUTPUT)]
    region = regions(model)[1]
    assert region.values == ("_0", "_1", "_2", "_3")
    assert region.sinks[0].factors == tuple(channel for channel in range(4) for _ in range(16))
    assert region.name == "0"


def block(s: Any, x: Tensor) -> Tensor:
    y = torch.relu(s.bn(s.a(x)))
    return s.d(torch.relu(y + s.c(torch.relu(s.b(y)))))


def gate(s: Any, x: Tensor) -> Tensor:
    y = torch.relu(s.a(x))
    return s.c(y * torch.sigmoid(s.b(y.mean((2, 3), keepdim=True))))


def both_halves(s: Any, x: Tensor) -> Tensor:
    left, right = s.a(x).chunk(2, 1)
    return s.b(torch.relu(left) * torch.sigmoid(right))


def attention(s: Any, x: Tensor) -> Tensor:
    """Queries, keys and values in one layer, two heads."""
    q, k, v = (part.unflatten(-1, (2, 2)).transpose(-3, -2) for part in s.a(x).chunk(3, -1))
    return s.b((torch.softmax(q @ k.mT, -1) @ v).transpose(-3, -2).flatten(-2))


def test_a_part_of_the_channels():
    model = Net(lambda s, x: s.c(torch.cat((s.a(x), x), 1)), a=conv(3, 4), c=conv(7, 2))
    assert rows(model)[1] == ("a", "c", "4/7", INPUT)


def twice(s: Any, x: Tensor) -> Tensor:
    return s.c(torch.relu(s.b(torch.relu(s.b(torch.relu(s.a(x)))))))


TABLE: dict[str, tuple[Callable[[], nn.Module], list[tuple[str, str, str, str]]]] = {
    "residual": (
        lambda: Net(block, a=conv(3, 4), bn=nn.BatchNorm2d(4), b=conv(4, 6), c=conv(6, 4), d=conv(4, 2)),
        [("bn c", "b d", "4/4", ""), ("b", "c", "6/6", "")],
    ),
    "cat": (
        lambda: Net(
            lambda s, x: s.c(torch.cat((s.a(x), torch.relu(s.b(x))), 1)), a=conv(3, 4), b=conv(3, 2), c=conv(6, 2)
        ),
        [("a b", "c", "6/6", "")],
    ),
    "cat along another dimension": (
        lambda: Net(lambda s, x: s.c(torch.cat((s.a(x), s.b(x)), 2)), a=conv(3, 4), b=conv(3, 4), c=conv(4, 2)),
        [("a b", "c", "4/4", "")],
    ),
    "depthwise": (
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 8, groups=4), nn.ReLU(), conv(8, 2)),
        [("0", "2", "4/4", ""), ("2", "4", "8/8", "")],
    ),
    "groups": (
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 6, groups=2), nn.ReLU(), conv(6, 2)),
        [("0", "2", "4/4", ""), ("2", "4", "6/6", "")],
    ),
    "gate": (lambda: Net(gate, a=conv(3, 4), b=conv(4, 4), c=conv(4, 2)), [("a", "b c", "4/4", ""), GATE]),
    "chunk": (
        lambda: Net(both_halves, a=conv(3, 8), b=conv(4, 2)),
        [("a", "b", "4/8", "no factor passes through sigmoid (sigmoid)")],
    ),
    "shuffle": (
        lambda: nn.Sequential(conv(3, 4), nn.ChannelShuffle(2), conv(4, 2)),
        [("0", "2", "4/4", "")],
    ),
    "a module called twice": (
        lambda: Net(twice, a=conv(3, 4), b=conv(4, 4), c=conv(4, 2)),
        [("a b", "b c", "4/4", "")],
    ),
    "transposed": (
        lambda: nn.Sequential(
            conv(3, 4), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), conv(6, 2)
        ),
        [("0", "2", "4/4", ""), ("3", "4", "6/6", "")],
    ),
    "group norm": (
        lambda: nn.Sequential(conv(3, 4), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 2)),
        [("0", "", "0/4", "_1 normalizes it"), ("1", "3", "4/4", "")],
    ),
    "batch norm without a weight": (
        lambda: nn.Sequential(conv(3, 4), nn.BatchNorm2d(4, affine=False), conv(4, 2)),
        [("", "2", "0/4", "_1 normalizes it, and has no weight to scale")],
    ),
    "activation that is no multiple": (
        lambda: nn.Sequential(conv(3, 4), nn.SiLU(), conv(4, 2)),
        [
            ("0", "", "0/4", "no factor passes through _1 (silu)"),
            ("", "2", "0/4", "no factor passes through _1 (silu)"),
        ],
    ),
    "hardtanh": (
        lambda: nn.Sequential(conv(3, 4), nn.Hardtanh(-2, 3), conv(4, 2)),
        [
            ("0", "", "0/4", "_1 clamps it to -2, 3, and no data tells how near its values come"),
            ("", "2", "0/4", "_1 clamps it to -2, 3, and no data tells how near its values come"),
        ],
    ),
    "heads of attention": (
        lambda: Net(attention, a=nn.Linear(8, 12), b=nn.Linear(4, 2)),
        [("a", "b", "4/12", "matmul multiplies it by other values"), ("a", "a", "4/4", "")],
    ),
    "a sum over channels": (
        lambda: Net(lambda s, x: s.b(x @ s.a(x).mT), a=nn.Linear(8, 8), b=nn.Linear(8, 2)),
        [
            ("a", "", "0/8", "matmul sums over its channels"),
            ("", "b", "0/8", "matmul sums over its channels"),
        ],
    ),
    "channels along two dimensions": (
        lambda: Net(lambda s, x: s.b(s.a(x).unflatten(-1, (2, 2)) + 1), a=nn.Linear(8, 4), b=nn.Linear(2, 2)),
        [
            ("a", "", "0/4", "the channels of unflatten lie along several dimensions"),
            ("", "b", "0/2", "the channels of unflatten lie along several dimensions"),
        ],
    ),
    "an average over the channels": (
        lambda: Net(lambda s, x: s.b(s.a(x).mean(1)), a=conv(3, 4), b=nn.Linear(8, 2)),
        [("a", "", "0/4", "mean goes over its channels"), ("", "b", "0/8", "mean goes over its channels")],
    ),
    "a product over the places": (
        lambda: Net(lambda s, x: s.b(s.a(x)), a=conv(3, 4), b=nn.Linear(8, 2)),
        [
            ("a", "", "0/4", "b multiplies along another dimension than the channels"),
            ("", "b", "0/8", "b multiplies along another dimension than the channels"),
        ],
    ),
    "a number is added": (
        lambda: Net(lambda s, x: s.b(s.a(x) + 1), a=conv(3, 4), b=conv(4, 2)),
        [
            ("a", "", "0/4", "add adds 1, which cannot be scaled"),
            ("", "b", "0/4", "add adds 1, which cannot be scaled"),
        ],
    ),
}


@pytest.mark.parametrize("name", one_of(3, TABLE))
def test_regions(name):
    make, expected = TABLE[name]
    assert inner(make()) == expected


def test_a_weight_of_two_layers_has_the_same_factors_in_both():
    model = Net(
        lambda s, x: s.c(torch.relu(s.b(torch.relu(s.a(x)))) + torch.relu(s.a(x))),
        a=conv(3, 4), b=conv(4, 4), c=conv(4, 2), d=conv(4, 4),
    )  # fmt: skip
    assert inner(model) == [("a b", "b c", "4/4", "")]
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Sigmoid())
    tied[4].weight = tied[0].weight
    assert {row[2] for row in rows(tied, torch.randn(2, 4))} == {"0/4"}


def test_a_parameter_that_something_else_reads_keeps_its_scale():
    def forward(s: Any, x: Tensor) -> Tensor:
        return s.b(torch.relu(s.a(x))), x * s.a.weight

    model = Net(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    assert inner(model, torch.randn(4, 4)) == [("a", "b", "0/4", "a_weight reads the parameter")]


def test_leaf_modules_end_a_region():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    assert inner(model, torch.randn(2, 4)) == [("0", "1.0", "4/4", ""), ("1.0", "2", "4/4", "")]
    x = torch.randn(2, 4)
    prepared = fxq.prepare(model.eval(), x, leaf_modules=["1"])
    found = find_regions(prepared.graph_module, (x,), {})
    assert [region.reason for region in found[1:3]] == ["no factor passes through _1 (Sequential)"] * 2


@pytest.mark.parametrize("spatial", [1, 3])
def test_convolutions_of_other_dimensions(spatial):
    kind: Any = {1: nn.Conv1d, 3: nn.Conv3d}[spatial]
    norm: Any = {1: nn.BatchNorm1d, 3: nn.BatchNorm3d}[spatial]
    pool: Any = {1: nn.AvgPool1d, 3: nn.AvgPool3d}[spatial]
    model = nn.Sequential(kind(3, 4, 1), norm(4), nn.LeakyReLU(), pool(2), kind(4, 2, 1))
    assert inner(model, torch.randn(2, 3, *[4] * spatial)) == [("1", "4", "4/4", "")]


def test_with_data_a_clamp_only_bounds_the_factors():
    model = nn.Sequential(conv(3, 4), nn.ReLU6(), conv(4, 2))
    assert [row[2] for row in inner(model)] == ["0/4", "0/4"]
    found = regions(model, with_data=True)[1]
    assert (found.channels, found.total) == (4, 4)
    (bound,) = found.bounds
    assert (bound.name, bound.value, bound.axis, bound.low, bound.high) == ("_1", "_0", -3, None, 6.0)
    computed = Net(lambda s, x: s.b(s.a(x).clamp(0.5, 1.0)), a=conv(3, 4), b=conv(4, 2))
    reasons = {row[3] for row in inner(computed, with_data=True)}
    assert reasons == {"clamp clamps it to bounds that do not hold 0, or are computed"}


def test_transformers_of_both_kinds():
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True, dropout=0.0)
    first = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True, dropout=0.0, norm_first=True)
    for model in (layer, first):
        found = regions(model, torch.randn(2, 3, 8))
        mlp = next(region for region in found if region.name.endswith("linear1"))
        assert ([end.path for end in mlp.sinks], mlp.channels) == (["linear2"], 16)
    norms = [region for region in regions(first, torch.randn(2, 3, 8)) if region.name == "norm2"]
    assert [(region.sinks[0].path, region.channels) for region in norms] == [("linear1", 8)]


def heads(s: Any, x: Tensor, *, groups: int = 1) -> Tensor:
    """Queries and keys in layers of their own, four channels a head; each key serves several heads."""
    q, k = s.q(x).unflatten(-1, (-1, 4)).transpose(1, 2) * 0.5, s.k(x).unflatten(-1, (-1, 4)).transpose(1, 2)
    k = k.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2) if groups > 1 else k
    return s.out(torch.softmax(q @ k.transpose(-2, -1) / 2.0, -1).flatten(1))


@pytest.mark.parametrize("groups", [1, 2])
def test_queries_and_keys_have_factors_that_cancel(groups):
    model = Net(
        lambda s, x: heads(s, x, groups=groups), q=nn.Linear(6, 8), k=nn.Linear(6, 8 // groups), out=nn.Linear(18, 2)
    )
    found = regions(model, torch.randn(2, 3, 6))
    region = found[-1]
    assert ([end.path for end in region.sources], [end.path for end in region.sinks]) == (["q"], ["k"])
    assert (region.sources[0].kind, region.sinks[0].kind, region.products) == ("rows", "partner", ("matmul",))
    assert region.channels == 8 // groups
    assert region.sources[0].factors == tuple(range(8 // groups)) * groups
    assert region.sinks[0].factors == tuple(range(8 // groups))
    reasons = {row[0]: row[3] for row in rows(model, torch.randn(2, 3, 6))[:-1]}
    assert reasons["q"] == "matmul multiplies it by other values"
    assert reasons["k"] == "matmul sums over its channels"


@pytest.mark.parametrize(
    "change",
    [
        lambda s, q, k: s.out(q),  # something else reads the queries
        lambda s, q, k: s.out(torch.sigmoid(k)),  # or a function of the keys
        lambda s, q, k: q,  # or nobody but the caller
    ],
)
def test_queries_that_something_else_reads_keep_their_scale(change):
    def forward(s: Any, x: Tensor) -> Any:
        q, k = s.q(x), s.k(x)
        return q @ k.mT, change(s, q, k)

    model = Net(forward, q=nn.Linear(6, 4), k=nn.Linear(6, 4), out=nn.Linear(4, 2))
    assert not [region for region in regions(model, torch.randn(2, 3, 6)) if region.products]


def test_indices_of_factors():
    model = nn.Sequential(conv(3, 4), nn.ChannelShuffle(2), conv(4, 2))
    source, sink = regions(model)[1].sources[0], regions(model)[1].sinks[0]
    shuffled = torch.tensor([source.factors[channel] for channel in (0, 2, 1, 3)])
    assert sink.factors == tuple(shuffled.tolist())
    assert FIXED not in sink.factors


def test_channels_join_and_keep_reasons():
    channels = Channels()
    a, b = channels.new(2), channels.new(2)
    channels.fix(a[:1], "first")
    channels.join(a, b)
    channels.fix(b, "later")
    assert [channels.reason(channel) for channel in (*a, *b)] == ["first", "later", "first", "later"]
    assert channels.factor_of(b[1]) == channels.factor_of(a[1]) != channels.factor_of(a[0])
    assert len(channels) == 4


def test_values_of_a_function_that_moves_them_by_sizes():
    def forward(s: Any, x: Tensor) -> Tensor:
        y = torch.relu(s.a(x))
        return s.b(y.view(y.size(0), 4, -1).transpose(1, 2).reshape(y.shape[0], -1))

    assert inner(Net(forward, a=conv(3, 4), b=nn.Linear(256, 2))) == [("a", "b", "4/4", "")]


def test_pads_and_interpolation():
    def forward(s: Any, x: Tensor) -> Tensor:
        return s.b(F.interpolate(F.pad(torch.relu(s.a(x)), (1, 1)), scale_factor=2, mode="bilinear"))

    assert inner(Net(forward, a=conv(3, 4), b=conv(4, 2))) == [("a", "b", "4/4", "")]
