"""A random model as lines of code: what is run, printed and shortened is one text."""

from __future__ import annotations

import ast
import functools
import linecache
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**15
"""Numbers that are drawn are sums of three whole numbers of steps, so that every machine draws the same."""


def draw(seed: int, *shape: int) -> Tensor:
    """Numbers about as large as those of a normal distribution, float32 ``shape``; the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-STEPS, STEPS + 1, (3, *shape), generator=generator).sum(0).float() / STEPS


def seeded(seed: int, module: nn.Module) -> nn.Module:
    """A module with parameters and statistics that hang on nothing but the seed; its results are about as large as its
    inputs."""
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if not tensor.is_floating_point():
                continue
            noise = draw(seed + zlib.crc32(name.encode()) % 2**31, *tensor.shape)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif tensor.dim() > 1:
                tensor.copy_(noise / tensor[0].numel() ** 0.5)
            elif name.endswith("weight"):
                tensor.copy_(1 + noise / 4)
            else:
                tensor.copy_(noise / 4)
    return module


def parameter(seed: int, *shape: int) -> nn.Parameter:
    """A parameter of its own, of the size of a layer's weight."""
    return nn.Parameter(draw(seed, *shape) / max(shape[-1], 1) ** 0.5)


def gain(seed: int, *shape: int) -> nn.Parameter:
    """A parameter of factors between 0.5 and 1.5: eight bits for all channels lose one that is made much smaller."""
    return nn.Parameter(1 + draw(seed, *shape) / 6)


NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": F,
    "Tensor": Tensor,
    "draw": draw,
    "seeded": seeded,
    "parameter": parameter,
    "gain": gain,
}
"""What the code of a model may use."""


@dataclass(frozen=True)
class Input:
    """One argument of a model: real numbers, or indices below ``high``."""

    name: str
    shape: tuple[int, ...]
    high: int = 0

    def __str__(self) -> str:
        return f"Input({self.name!r}, {self.shape}{f', high={self.high}' if self.high else ''})"


@dataclass(frozen=True)
class Line:
    """One line of ``__init__`` or of ``forward``, and the ingredient that it belongs to."""

    code: str
    ingredient: str = ""

    @property
    def reads(self) -> frozenset[str]:
        """Names of values and members (``self.m1``) that the line needs."""
        return names(self.code)[0]

    @property
    def writes(self) -> frozenset[str]:
        """Names of values and members that it makes."""
        return names(self.code)[1]


@functools.lru_cache(4096)
def names(code: str) -> tuple[frozenset[str], frozenset[str]]:
    """What a piece of code reads and what it makes: names of values, and members as ``self.m1``.

    A change in place reads a value and makes none; a member whose weight is replaced is made by that line, too.
    """
    tree = ast.parse(code)
    reads: set[str] = set()
    writes: set[str] = set()
    changed = [node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            writes.add(_member(node) or _member(node.value))
        elif _member(node):
            reads.add(_member(node))
        elif isinstance(node, ast.Name) and node.id != "self" and node.id not in NAMES:
            (writes if isinstance(node.ctx, ast.Store) and node not in changed else reads).add(node.id)
    return frozenset(reads), frozenset(writes)


def _member(node: ast.AST) -> str:
    """The name of a member of the model, ``self.m1``; empty if it is none."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return f"self.{node.attr}" if of_self and node.attr != "training" else ""  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Recipe:
    """A model and its inputs."""

    inputs: tuple[Input, ...]
    members: tuple[Line, ...]
    lines: tuple[Line, ...]
    returns: Line

    @property
    def ingredients(self) -> frozenset[str]:
        """Names of what it is made of."""
        return frozenset(line.ingredient for line in (*self.lines, self.returns)) - {""}

    def __str__(self) -> str:
        members = "".join(f"\n        {line.code}" for line in self.members)
        body = "\n".join(f"        {line.code}" for line in (*self.lines, self.returns))
        arguments = ", ".join(("self", *(each.name for each in self.inputs)))
        return (
            "class Model(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__(){members}\n\n"
            f"    def forward({arguments}):\n{body}\n"
        )

    def build(self) -> nn.Module:
        """The model, in evaluation mode. Every call gives an equal one."""
        model = _class(str(self))()
        return model.eval()

    def pruned(self) -> Recipe:
        """Without lines that nothing needs, members and inputs that nothing reads."""
        lines, needed = [], set(self.returns.reads)
        for line in reversed(self.lines):
            if not line.writes or line.writes & needed:  # what makes no new value changes one
                lines.append(line)
                needed |= line.reads
        members = []
        for line in reversed(self.members):
            if line.writes & needed:
                members.append(line)
                needed |= line.reads
        inputs = tuple(each for each in self.inputs if each.name in needed)
        return replace(self, inputs=inputs, members=tuple(members[::-1]), lines=tuple(lines[::-1]))


@functools.lru_cache(256)
def _class(text: str) -> Callable[[], nn.Module]:
    """The class, whose lines errors can show."""
    file = f"<model {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**NAMES, "__name__": __name__}
    exec(compile(text, file, "exec"), scope)
    made: Callable[[], nn.Module] = scope["Model"]
    return made
