"""One model with all its forms, made when a check asks for them."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import fxquant as fxq
from fxquant.errors import FxQuantError, FxQuantWarning
from fxquant.quantizer.quantizer import Quantizer
from tests.fuzz.inputs import VARIANTS, Values, values_of
from tests.fuzz.source import Input, Recipe
from tests.outputs import rounding_outputs

ATTENTION = ("MultiheadAttention", "Transformer", "scaled_dot_product_attention")
"""What preparation takes apart; its parts sum in another order."""
CONTRACTIONS = ("einsum",)
"""So does that of these, as docs/coverage.md says: torch makes a batch of one product of an einsum with a weight, and
the layer that it becomes none. ``tensordot`` runs the product that its parts run."""
COPIES = (".clone()", ".contiguous()", "] = ", "] += ", "] *= ", "].mul_(", "].zero_(", ".copy_(", ".masked_fill_(")
"""A copy that sees to the order in memory goes behind the activation that reads it, so that both fuse with what is
before, and an assignment becomes a join, which lies in memory as its parts do, or ``masked_fill``, whose result is
always contiguous. Of an input that is not dense, or does not begin where memory is aligned, torch gives the last bit of
some functions (GELU, say), of products and of convolutions, by how it lies in memory."""
PAD_OF_NOTHING = re.compile(r"F\.pad\(\w+, \((0, )+0\)")
"""A copy, too, which is taken out."""
NOTHING = "the model has no operator that can be quantized"
"""Begins what ``prepare`` says of a model in which there is nothing to do."""


class NothingToDoError(Exception):
    """A model that says nothing: it has no operator for integers, or does not run."""


class Case:
    """A model under test.

    Args:
        make: Gives it, in any mode; equal ones.
        inputs: Its arguments.
        seed: Of the values that it is given.
        code: Of its class.
    """

    def __init__(self, make: Callable[[], nn.Module], inputs: tuple[Input, ...], seed: int, code: str) -> None:
        self.make = make
        self.inputs = inputs
        self.seed = seed
        self.code = code
        self.has_attention = any(word in code for word in ATTENTION)
        self.has_contraction = any(word in code for word in CONTRACTIONS)
        self.has_copy = any(word in code for word in COPIES) or PAD_OF_NOTHING.search(code) is not None
        self.calls = 0
        """How many times int8 models were run."""
        self.skipped: Counter[str] = Counter()
        """What was not checked, and why."""

    @classmethod
    def of(cls, recipe: Recipe, seed: int) -> Case:
        """A random model under test."""
        return cls(recipe.build, recipe.inputs, seed, str(recipe))

    @cached_property
    def model(self) -> nn.Module:
        return self.make().eval()

    @cached_property
    def facts_before(self) -> dict[str, Any]:
        """What the model was before anything was done with it."""
        return facts_of(self.model)

    @cached_property
    def example(self) -> Values:
        return values_of(self.inputs, self.seed)

    def again(self) -> Case:
        """The same, from the beginning."""
        other = copy.copy(self)
        for name in [*vars(other)]:
            if isinstance(getattr(type(self), name, None), cached_property):
                del vars(other)[name]
        return other

    def run(self, model: nn.Module, values: Values) -> Any:
        with torch.no_grad():
            return model(*values)

    @cached_property
    def expected(self) -> Any:
        before = [value.clone() for value in self.example]
        try:
            result = self.run(self.model, self.example)
        except Exception as error:  # whatever torch says of a model that was shortened too far
            raise NothingToDoError(str(error)) from error
        if not all(map(torch.equal, before, self.example)):
            raise NothingToDoError("it writes into its input")
        return result

    @cached_property
    def prepared(self) -> Quantizer:
        """Calibrated on the example and another batch. Of odd seeds, what the model returns is on a grid, too."""
        assert self.facts_before
        assert self.expected is not None
        with quiet():
            with nothing_to_do():
                prepared = fxq.prepare(self.model, self.example, rounding_outputs() if self.seed % 2 else None)
            return fxq.calibrate(prepared, self.calibrated, progress=False)

    @property
    def calibrated(self) -> list[Values]:
        """The batches that it is calibrated on."""
        return [self.example, values_of(self.inputs, self.seed + 100)]

    def converted(self, **options: Any) -> GraphModule:
        with quiet():
            return fxq.convert(self.prepared, **options)

    @cached_property
    def programs(self) -> GraphModule:
        return self.converted()

    @cached_property
    def graph(self) -> GraphModule:
        return self.converted(engine="graph")

    @cached_property
    def simulated(self) -> GraphModule:
        return self.converted(to="fake_quant")

    @cached_property
    def variants(self) -> dict[str, Values]:
        """Kind of input -> the values, for each kind that the float model takes.

        It does not if it fails on them in any way: the fused attention of torch looks at no shapes, so that, of an
        empty batch, it takes what the operators that it stands for refuse.
        """
        found = {"example": self.example}
        for number, (name, make) in enumerate(VARIANTS.items()):
            values = make(self.inputs, self.seed + 1000 * (number + 1))
            try:
                result = self.run(self.model, values)
                with without_fast_path():
                    self.run(self.model, values)
            except Exception:  # reshapes of an empty batch, say
                self.skipped[f"{name} input, which float refuses"] += 1
                continue
            if name == "empty" and not self._keeps_shapes(result):
                self.skipped["empty input, whose shape float loses"] += 1
                continue
            found[name] = values
        return found

    def _keeps_shapes(self, result: Any) -> bool:
        """Tell whether what an empty batch gives has the shape of other results, but for sizes of 0.

        It has not behind ``F.pixel_unshuffle``, which gives an empty batch back as it is. Norms look at no shapes then.
        """
        usual, found = _shapes(self.expected), _shapes(result)
        return len(usual) == len(found) and all(
            len(one) == len(other) and all(size in (0, own) for own, size in zip(one, other, strict=True))
            for one, other in zip(usual, found, strict=True)
        )

    def some_variants(self, count: int, among: Iterable[str] = VARIANTS) -> dict[str, Values]:
        """The example and a few other kinds of input, which hang on the seed."""
        names = [name for name in among if name in self.variants]
        chosen = random.Random(self.seed).sample(names, min(count, len(names)))
        return {name: self.variants[name] for name in ("example", *chosen)}

    def qat_of(self, model: nn.Module) -> GraphModule:
        with quiet(), nothing_to_do():
            return fxq.prepare_qat(model, self.example)

    def training_model(self) -> nn.Module:
        return copy.deepcopy(self.model).train()


def _shapes(result: Any) -> list[torch.Size]:
    return [value.shape for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Attention by the operators that it is made of, in place of those that torch fuses it to for inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def nothing_to_do() -> Iterator[None]:
    """Tell a model in which there is nothing to quantize from one that is refused."""
    try:
        yield
    except FxQuantError as error:
        if str(error).startswith(NOTHING):
            raise NothingToDoError(NOTHING) from error
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of fxquant: they speak of ranges that random models have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)
        yield


def facts_of(model: nn.Module) -> dict[str, Any]:
    """Everything that a user may see of a model: its values, flags, attributes, hooks."""
    facts: dict[str, Any] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        facts[f"tensor {name}"] = (
            tensor.detach().clone().reshape(-1).view(torch.uint8).tolist(),
            tensor.requires_grad,
            id(tensor),
            tensor.grad is None,
            tensor._version,
        )
    for name, module in model.named_modules():
        hooks = sum(len(value) for key, value in vars(module).items() if key.endswith("hooks") and value)
        facts[f"module {name}"] = (type(module), module.training, sorted(vars(module)), hooks, id(module))
    return facts
