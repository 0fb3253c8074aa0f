"""Measures how often a float and a quantized model name the right class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm

from fxquant.calibration.batches import inputs_of
from fxquant.cli.data import Data
from fxquant.distributed.facts import module_facts
from fxquant.distributed.shared_numbers import SharedNumbers
from fxquant.graph.text_table import format_rows

LABELS = ("labels", "label", "target", "targets")
"""Under which of these a dict of keyword inputs may hold labels."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts right answers. Print it."""

    images: int
    float_right: int
    quantized_right: int
    same: int
    """Answers that both models give alike."""
    on_calibration: bool
    """Whether the images are those that the model was calibrated on."""

    def __str__(self) -> str:
        rows = [
            ("float", self._share(self.float_right)),
            ("quantized", self._share(self.quantized_right)),
            ("same answer", self._share(self.same)),
        ]
        where = "that the model was calibrated on: there are no others" if self.on_calibration else "that were held out"
        return f"{format_rows(rows, ('right answers', ''), 'lr')}\nof {self.images} images {where}"

    def _share(self, count: int) -> str:
        return f"{count / self.images:.1%}"


def measure_accuracy(
    float_model: nn.Module, quantized: nn.Module, data: Data, args: tuple[Any, ...], *, progress: bool = True
) -> Accuracy | str:
    """Run both models on what was held out.

    Args:
        float_model: Which of the two is which.
        quantized: The other.
        data: What the command line names.
        args: The positional inputs of an example.
        progress: Show a progress bar.

    Returns:
        The counts; or why there are none.
    """
    counts, reasons = [0, 0, 0, 0], list[str]()

    def fold(kind: str, found: Any) -> None:
        if kind == "reason":
            reasons.append(found)
            return
        counts[:] = [count + more for count, more in zip(counts, found, strict=True)]

    share = SharedNumbers("accuracy", data.held_out, None, lambda: _facts(float_model, quantized), fold)
    hidden = not progress or share.rank > 0
    for index, batch in tqdm(share.batches(), desc="accuracy", unit="batch", disable=hidden):
        share.keep(index, *_counts_of(batch, float_model, quantized, data, args))
        if reasons:
            break
    share.fold_all()
    if reasons or not counts[0]:
        return (reasons or ["the data has no labels"])[0]
    images, float_right, quantized_right, same = counts
    return Accuracy(images, float_right, quantized_right, same, data.same)


def _facts(float_model: Any, quantized: Any) -> dict[str, str]:
    return {**module_facts(float_model, "float model"), **module_facts(quantized, "quantized model")}


def _counts_of(
    batch: Any, float_model: nn.Module, quantized: nn.Module, data: Data, args: tuple[Any, ...]
) -> tuple[str, Any]:
    """Return "counts" and how many images one batch has, how many either model gets right, and how many both answer
    alike; or "reason" and why there are no such counts."""
    labels = labels_of(batch, len(args))
    if labels is None:
        return "reason", "the data has no labels"
    inputs, kwargs = inputs_of(batch, args, "a batch that was held out", float_model)
    with torch.no_grad():
        answers = [logits_of(model(*inputs, **kwargs)) for model in (float_model, quantized)]
    if reason := not_comparable(answers[0], labels, data.classes):
        return "reason", reason
    first, second = (answer.argmax(1) for answer in answers if answer is not None)
    right = [int((answer == labels).sum()) for answer in (first, second)]
    return "counts", [len(labels), *right, int((first == second).sum())]


def labels_of(batch: Any, inputs: int) -> Tensor | None:
    """Return the labels in a batch: integers, one for each sample, after the inputs or under a usual name."""
    found: Any = None
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in LABELS if key in batch), None)
    elif isinstance(batch, (tuple, list)) and len(batch) > inputs:
        found = batch[inputs]
    if isinstance(found, Tensor) and found.dim() == 1 and not found.is_floating_point() and found.dtype != torch.bool:
        return found
    return None


def logits_of(output: Any) -> Tensor | None:
    """Return the scores of classes in what a model gives: its first tensor, if that is a table."""
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return tensors[0] if tensors and tensors[0].dim() == 2 else None


def not_comparable(logits: Tensor | None, labels: Tensor, classes: int | None) -> str:
    """Say why labels cannot be compared with answers; empty if they can."""
    if logits is None:
        return "the model gives no table of a score for each class"
    answers = logits.shape[1]
    if classes is not None and classes != answers:
        return (
            f"the folder has {classes} classes and the model {answers}: which is which cannot be known "
            "(folders named by the numbers of the classes say so)"
        )
    if len(labels) != len(logits) or not bool(((labels >= 0) & (labels < answers)).all()):
        return f"labels are none of the {answers} classes of the model"
    return ""
