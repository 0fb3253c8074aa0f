"""Where a graph is cut: model -> the blocks, with the layers of each."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import InputError, UnknownNameError
from fxquant.measure.parity import plan_of
from fxquant.training.blocks import Cutter
from fxquant.training.named_blocks import named_blocks


def conv(inputs: int, outputs: int, size: int = 1, groups: int = 1) -> nn.Sequential:
    padding = size // 2
    layer = nn.Conv2d(inputs, outputs, size, padding=padding, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU6())


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.is_residual = inputs == outputs
        self.conv = nn.Sequential(conv(inputs, 8), conv(8, 8, 3, groups=8), nn.Conv2d(8, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.is_residual else self.conv(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 4, 3), Inverted(4, 4), Inverted(4, 6), Inverted(6, 6), conv(6, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Squeezed(nn.Module):
    """A gate: what it multiplies stays alive while the gate is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = conv(3, 8), nn.Conv2d(8, 4, 1)
        self.first, self.second = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(x)
        gate = torch.sigmoid(self.second(F.relu(self.first(F.adaptive_avg_pool2d(x, 1)))))
        return self.last(F.relu(self.project(x * gate)))


class Joined(nn.Module):
    """Two branches that are put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = conv(3, 4), conv(4, 4, 3), conv(4, 4)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.cat([self.left(x), self.right(x)], 1))


class Dense(nn.Module):
    """Every layer reads what all before it give: nothing can be cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 1) for i in range(10))

    def forward(self, x: Tensor) -> Tensor:
        parts = [F.relu(self.layers[0](x))]
        for layer in self.layers[1:]:
            parts.append(F.relu(layer(torch.cat([x, *parts], 1))))
        return torch.cat(parts, 1)


class Ladder(nn.Module):
    """A value that is read again at the end, around sums: more than eight weights, and sums to split at."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv(3, 4)
        self.layers = nn.ModuleList(conv(4, 4) for _ in range(10))
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = x = self.first(x)
        for index in (0, 5):
            y = x
            for layer in self.layers[index : index + 5]:
                y = layer(y)
            x = x + y
        return self.last(x + kept)


class Masked(nn.Module):
    """A second input, and a size, are alive all the way, and cut nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        count = x.shape[0]
        x = F.relu(self.a(x)) * mask
        return (F.relu(self.b(x)) * mask).view(count, -1)


class Apart(nn.Module):
    """Two layers of one module, and a layer of another module between them."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.between, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pair[1](self.between(self.pair[0](x))))


def cutter(model: nn.Module, *inputs: Tensor) -> Cutter:
    prepared = fxq.prepare(model.eval(), inputs, fxq.get_default_qconfig_mapping())
    simulated = fxq.convert(prepared, to="fake_quant", allow_uncalibrated=True)
    return Cutter(simulated, plan_of(simulated))


def image() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


BLOCKS: dict[str, tuple[nn.Module, tuple[Tensor, ...], list[tuple[str, int, str]]]] = {
    "residual, depthwise": (
        MobileNet(),
        (image(),),
        [
            ("features.0.0", 1, "features_0_2"),
            ("features.1.conv", 3, "add"),
            ("features.2.conv", 3, "features_2_conv_2"),
            ("features.3.conv", 3, "add_1"),
            ("features.4.0", 1, "features_4_2"),
            ("head", 1, "head"),
        ],
    ),
    "gate": (Squeezed(), (image(),), [("expand.0", 1, ""), ("mul", 2, ""), ("project", 1, ""), ("last", 1, "last")]),
    "cat": (Joined(), (image(),), [("first.0", 1, "first_2"), ("cat", 2, "cat"), ("last", 1, "last")]),
    "dense": (Dense(), (image(),), [(f"layers.{i}", 1, "") for i in range(10)]),
    "more than eight weights": (
        Ladder(),
        (image(),),
        [("first.0", 1, "first_2"), ("layers", 5, "add"), ("layers", 5, "add_2"), ("last", 1, "last")],
    ),
    "a mask and a size": (Masked(), (torch.randn(2, 3, 4), torch.ones(2, 3, 1)), [("a", 1, "relu"), ("b", 1, "")]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    model, inputs, expected = BLOCKS[name]
    cut = cutter(model, *inputs)
    blocks = cut.automatic()
    found = [(block.name, len(block.units), block.end.name.removesuffix("_fake_quant")) for block in blocks]
    assert [(name, count) for name, count, _ in found] == [(name, count) for name, count, _ in expected]
    assert [end for (*_, end), (*_, wanted) in zip(found, expected, strict=True) if wanted] == [
        wanted for *_, wanted in expected if wanted
    ]
    place = {node: index for index, node in enumerate(cut.order)}
    for block in blocks:
        places = [place[node] for node in block.nodes]
        assert places == list(range(places[0], places[-1] + 1)), "side by side"
        assert all(place[node] < places[0] for node in block.read)
    weights = [unit.root for block in blocks for unit in block.units]
    assert len(weights) == len({*weights}) == sum(count for _, count, _ in expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", BLOCKS)
def test_units(name: str) -> None:
    model, inputs, expected = BLOCKS[name]
    blocks = cutter(model, *inputs).by_units()
    assert [len(block.units) for block in blocks] == [1] * sum(count for _, count, _ in expected)


def test_blocks_by_name() -> None:
    cut = cutter(MobileNet(), image())
    blocks = named_blocks(cut, ["features.3", "features.1"])
    assert [(block.name, len(block.units)) for block in blocks] == [("features.1", 3), ("features.3", 3)]
    place = {node: index for index, node in enumerate(cut.order)}
    assert [place[node] for node in blocks[0].nodes] == list(range(place[blocks[0].nodes[0]], place[blocks[0].end] + 1))
    branch = named_blocks(cutter(Joined(), image()), ["left"])[0]
    assert [node.name for node in branch.read] == ["first_2_fake_quant"]


def test_names_that_cannot_be_blocks() -> None:
    with pytest.raises(InputError) as raised:
        named_blocks(cutter(MobileNet(), image()), ["features.1", "features.1.conv"])
    assert str(raised.value) == (
        "blocks overlap\n  got:      'features.1' and 'features.1.conv'\n  expected: modules that lie apart"
    )
    with pytest.raises(InputError) as raised:
        named_blocks(cutter(Dense(), image()), ["layers"])
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["a block has one input and one output", "  at:       layers"]
    assert any("comes out" in line for line in lines)
    assert lines[-1] == "  expected: a module through which all values go in at one place and come out at one"
    with pytest.raises(InputError) as raised:
        named_blocks(cutter(Apart(), torch.randn(2, 4)), ["pair"])
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["a block has one input and one output", "  at:       pair"]
    crossing = {line.removeprefix("  got:      ").strip() for line in lines[2:-1]}
    assert {"between goes in", "pair_0 comes out", "pair_1 comes out"} <= {
        line.replace("_fake_quant", "") for line in crossing
    }
    with pytest.raises(UnknownNameError) as unknown:
        named_blocks(cutter(MobileNet(), image()), ["feature.1"])
    what, got, hint = str(unknown.value).splitlines()
    assert (what, got) == ("no quantized weight lies below a module of this name", "  got:      'feature.1'")
    assert hint.startswith("  hint:     did you mean 'features.")
