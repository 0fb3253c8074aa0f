"""The elements of a value that are read as integers are found through everything that moves them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fxquant as fxq
from fxquant.graph.query import VALUE, nodes_by_name
from fxquant.passes.elements import ElementsRead
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.matcher import PatternIndex, match
from fxquant.patterns.pattern import Match

SHAPE = (4, 6, 6)


class Reading(nn.Module):
    """``y`` is the value that is looked at; layers take integers, a norm reads real numbers."""

    def __init__(self, body: Callable[..., object]) -> None:
        super().__init__()
        self.body, self.layer, self.norm = body, nn.Linear(6, 6), nn.RMSNorm(6)

    def forward(self, x: Tensor) -> object:
        return self.body(self, torch.add(x, x))


def elements_of(body: Callable[..., object]) -> tuple[ElementsRead, torch.fx.Node]:
    nodes = nodes_by_name(fxq.prepare(Reading(body).eval(), torch.randn(SHAPE)).graph_module)
    index, found = PatternIndex(DEFAULT_PATTERNS), dict[torch.fx.Node, Match]()
    for node in nodes.values():
        fits = (match(pattern, node) for pattern in index.ending_in(node)) if node.op.startswith("call") else ()
        fit = next((each for each in fits if isinstance(each, Match)), None)
        if fit is not None:
            found |= dict.fromkeys(fit.nodes, fit)
    return ElementsRead(found, lambda _, reader: reader in found), nodes["add"]


def layer_reads(part: Callable[[Tensor], Tensor], beside: Callable[[Tensor], Tensor] | None = None):
    def body(m, y):
        rest = () if beside is None else (m.norm(beside(y)),)
        return m.layer(part(y)), *rest

    return body


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a slice": lambda y: y[:, 0:1],
    "an index": lambda y: y[1],
    "every other": lambda y: y[:, ::2],
    "two slices": lambda y: y[:, 1:][:2],
    "transposed": lambda y: y.transpose(0, 1)[0:2],
    "moved": lambda y: y.permute(1, 2, 0).reshape(36, 4)[:6].t(),
    "flipped": lambda y: y.flip(1)[:, :1],
    "rolled": lambda y: y.roll(2, 1)[:, :3],
    "narrow": lambda y: torch.narrow(y, 1, 1, 2),
    "select": lambda y: torch.select(y, 1, 5),
    "one of a split": lambda y: y.split([1, 5], 1)[0],
    "one of a chunk, sliced": lambda y: y.chunk(2, 1)[1][:2],
    "unbound": lambda y: y.unbind(1)[2],
    "added to": lambda y: F.relu(y + y)[2:],
    "expanded": lambda y: y[:, 0:1].expand(4, 3, 6),
    "repeated": lambda y: y[:, 2:3].repeat(1, 2, 1),
    "indexed": lambda y: y[[0, 2]],
}


@pytest.mark.parametrize("name", PARTS)
def test_the_elements_of_a_part_are_those_that_its_gradient_reaches(name):
    part = PARTS[name]
    elements, y = elements_of(layer_reads(part))
    leaf = torch.ones(SHAPE, requires_grad=True)
    part(leaf).sum().backward()
    needed = elements.as_integers(y)
    assert needed is not None
    assert torch.equal(needed.expand(SHAPE), leaf.grad != 0)
    assert not elements.some_only_as_floats(y)


ALL: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda y: y,
    "moved": lambda y: y.transpose(0, 1).flatten(0, 1),
    "a pool": lambda y: F.max_pool1d(y, 3, 1, 1)[:, :1],
    "a softmax": lambda y: y.softmax(1)[:, :1],
    "broadcast": lambda y: (y[:1] + y)[1:],
    "of a computed size": lambda y: y.reshape(y.shape[0] * 6, 6)[:3],
    "joined": lambda y: torch.cat([y, y])[:2],
}


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_known_counts_as_all(name):
    elements, y = elements_of(layer_reads(ALL[name], lambda y: y))
    assert elements.as_integers(y) is None
    assert not elements.some_only_as_floats(y)


def test_parts_add_up():
    elements, y = elements_of(lambda m, y: (m.layer(y[:, :2]), m.layer(y[:, 2:]), m.norm(y)))
    assert elements.as_integers(y) is None
    elements, y = elements_of(lambda m, y: (m.layer(y[:, :2]), m.layer(y[:, 3:]), m.norm(y)))
    assert elements.some_only_as_floats(y)


@pytest.mark.parametrize(
    ("beside", "only_floats"),
    [
        (lambda y: y, True),
        (lambda y: y[:, 1:], True),
        (lambda y: y[:, :1], False),
        (lambda y: y.split([1, 5], 1)[1], True),
        (lambda y: y.split([1, 5], 1)[0], False),
        (lambda y: y.transpose(0, 1), True),
    ],
)
def test_what_is_read_as_real_numbers_and_not_as_integers(beside, only_floats):
    elements, y = elements_of(layer_reads(lambda y: y[:, 0:1], beside))
    assert elements.some_only_as_floats(y) is only_floats


class LargestInMemory(TorchDispatchMode):
    """Notes the bytes of the largest tensor that has data."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(each, Tensor) and each.device.type != "meta":
                self.nbytes = max(self.nbytes, each.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(
    ("part", "needed"),
    [
        (lambda y: y[:, 0:1], (slice(None), slice(0, 1), slice(None))),
        (lambda y: y[1::2, 2:5], (slice(1, None, 2), slice(2, 5), slice(None))),
        (lambda y: y[[0, 2]], None),
    ],
)
def test_the_elements_of_a_large_value_take_no_memory(part, needed):
    elements, y = elements_of(layer_reads(part, lambda y: y[:, 1:]))
    large = torch.empty(1000, 1000, 1000, device="meta")
    y.meta[VALUE] = dataclasses.replace(y.meta[VALUE], shape=tuple(large.shape))
    for reader in y.users:
        shape = tuple(large[reader.args[1]].shape)
        reader.meta[VALUE] = dataclasses.replace(reader.meta[VALUE], shape=shape)
    with LargestInMemory() as largest:
        found = elements.as_integers(y)
        only_floats = elements.some_only_as_floats(y)
    assert largest.nbytes <= 8_000_000
    assert only_floats is (needed is not None)
    if needed is None:
        assert found is None
        return
    whole = found.expand(large.shape)
    counts = [torch.zeros(1000, dtype=torch.bool) for _ in needed]
    for dim, (count, taken) in enumerate(zip(counts, needed, strict=True)):
        count[taken] = True
        beside = [int(torch.arange(1000)[each][0]) for each in needed]
        line = whole[tuple(slice(None) if other == dim else beside[other] for other in range(3))]
        assert torch.equal(line, count)
