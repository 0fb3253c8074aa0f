"""GPTQ: a weight is rounded column by column, and what is left makes up for the error of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fxquant.errors import InputError, UnknownNameError
from fxquant.observers.qparams import choose_qparams
from fxquant.plan.spec import is_number
from fxquant.registry import did_you_mean
from fxquant.training.rounding_layers import least_error_scale
from fxquant.training.weight_matrix import WeightMatrix, steps_of

ORDERS = ("activation", "given")

BLOCK = 64
"""Columns after which the others are told of the errors; until then, those of the block alone are."""
LARGEST_DAMPING = 1.0
"""Part of the mean of the diagonal."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How columns are rounded; see ``gptq``.

    Raises:
        InputError: the damping is out of range.
        UnknownNameError: there is no such order.
    """

    damping: float
    order: str

    def __post_init__(self) -> None:
        if not is_number(self.damping) or not 0 < self.damping <= 1:
            raise InputError("damping is out of range", got=repr(self.damping), expected="a number above 0, up to 1")
        object.__setattr__(self, "damping", float(self.damping))  # checkpoints hold it, and know no other kind
        if self.order not in ORDERS:
            raise UnknownNameError(
                "unknown order of inputs",
                got=repr(self.order),
                expected=", ".join(ORDERS),
                hint=did_you_mean(str(self.order), ORDERS),
            )


def round_columns(matrix: WeightMatrix, products: Tensor, damping: float, order: str) -> tuple[Tensor, float] | None:
    """Round a weight so that the squared error of the outputs is small, and not that of the weight.

    An input that is 0 throughout gets the weight 0. Where inputs share a scale in runs, the scale of each is that of
    least error for the weights as they are when its turn comes; ``matrix`` then holds it.

    Args:
        matrix: The weight with its qparams. Its scales are changed where it has runs.
        products: float64 [groups, inputs, inputs], the sums of products of two inputs. Not changed.
        damping: Part of the mean of the diagonal that is added to it. Where the matrix cannot be factored, ten times as
            much, up to 1.
        order: ``"activation"``: inputs of the largest squares first, run by run; ``"given"``: as they stand.

    Returns:
        The integers, float64 [groups, outputs, inputs], and the damping that was used; None where none was enough.

    Source:
        Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
        arXiv:2210.17323, algorithm 1.
    """
    # Put the columns into their order.
    squares = products.diagonal(dim1=1, dim2=2)
    dead = squares <= 0
    turns = _turns(squares, matrix.runs, order)
    along = turns.unsqueeze(1).expand_as(matrix.weight)
    weight = matrix.weight.masked_fill(dead.unsqueeze(1), 0.0).gather(2, along)
    scale, zero_point = matrix.scale.gather(2, along), matrix.zero_point.gather(2, along)

    # Find the factor U of the inverse of the products, U^T U: row i says how the others make up for column i.
    found = inverse_factor(products, squares, turns, damping)
    if found is None:
        return None
    factor, used = found

    # Round block by block.
    integers = torch.empty_like(weight)
    errors = torch.empty_like(weight)
    scheme = matrix.scheme
    for start, stop, first in _blocks(weight.shape[-1], matrix.runs):
        if first is not None:  # the block begins a run, which ends at `first`
            run = slice(start, first)
            scale[:, :, run], zero_point[:, :, run] = _chosen(weight[:, :, run], matrix)
        for column in range(start, stop):
            steps = steps_of(weight[:, :, column], scale[:, :, column], zero_point[:, :, column], scheme)
            value = (steps - zero_point[:, :, column]) * scale[:, :, column]
            error = (weight[:, :, column] - value) / factor[:, column, column].unsqueeze(1)
            rest = slice(column + 1, stop)
            weight[:, :, rest] -= error.unsqueeze(2) * factor[:, column, rest].unsqueeze(1)
            integers[:, :, column], errors[:, :, column] = steps, error
        weight[:, :, stop:] -= errors[:, :, start:stop] @ factor[:, start:stop, stop:]

    # Put them back.
    if matrix.runs is not None:
        matrix.scale = torch.empty_like(scale).scatter_(2, along, scale)
        matrix.zero_point = torch.empty_like(zero_point).scatter_(2, along, zero_point)
    return torch.empty_like(integers).scatter_(2, along, integers), used


def inverse_factor(products: Tensor, squares: Tensor, turns: Tensor, damping: float) -> tuple[Tensor, float] | None:
    """Factor the inverse of the damped products, with rows and columns in the order of ``turns``.

    Args:
        products: float64 [groups, inputs, inputs].
        squares: Its diagonal.
        turns: int64 [groups, inputs].
        damping: Part of the mean of the diagonal, over inputs that are not 0 throughout.

    Returns:
        Upper triangular U with ``U^T U`` the inverse, and the damping that was used; None where none was enough.
    """
    alive = (squares > 0).sum(1).clamp(min=1)
    mean = (squares.sum(1) / alive).unsqueeze(1)
    back = turns.flip(1)  # with A upper triangular, A A^T is a Cholesky factorization from the last row to the first
    matrix = products.gather(1, back.unsqueeze(2).expand_as(products))
    matrix = matrix.gather(2, back.unsqueeze(1).expand_as(products))
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    own = diagonal.clone()
    while damping <= LARGEST_DAMPING:
        # A dead input has zeros in its row: any positive number leaves it alone.
        diagonal.copy_(torch.where(own > 0, own + damping * mean, mean.clamp(min=torch.finfo(own.dtype).tiny)))
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if not bool(failed.any()) and bool(lower.isfinite().all()):
            one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
            inverse = torch.linalg.solve_triangular(lower, one.expand_as(lower), upper=False)
            return inverse.flip(1, 2), damping
        if damping == LARGEST_DAMPING:
            break
        damping = min(10 * damping, LARGEST_DAMPING)
    return None


def _turns(squares: Tensor, runs: Tensor | None, order: str) -> Tensor:
    """Return the places of the columns in the order in which they are rounded, int64 [groups, inputs]."""
    natural = torch.arange(squares.shape[1], device=squares.device).expand_as(squares)
    turns = squares.argsort(dim=1, descending=True, stable=True) if order == "activation" else natural
    if runs is None:
        return turns
    rank = torch.arange(int(runs.max()) + 1, device=squares.device).expand(len(squares), -1)
    if order == "activation":  # runs of the largest squares first
        sums = torch.zeros(rank.shape, dtype=squares.dtype, device=squares.device)
        sums.scatter_add_(1, runs.expand_as(squares), squares)
        rank = sums.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return turns.gather(1, rank.gather(1, runs[turns]).argsort(dim=1, stable=True))


def _blocks(columns: int, runs: Tensor | None) -> Iterator[tuple[int, int, int | None]]:
    """Yield begin and end of each block; where a run begins with it, also the end of the run."""
    length = columns if runs is None else int((runs == 0).sum())
    for start in range(0, columns, length):
        for begin in range(start, start + length, BLOCK):
            end = start + length if runs is not None and begin == start else None
            yield begin, min(begin + BLOCK, start + length), end


def _chosen(weight: Tensor, matrix: WeightMatrix) -> tuple[Tensor, Tensor]:
    """Return scale and zero point of least error for some columns of each row; float64 [groups, outputs, 1]."""
    values = weight.flatten(0, 1).float()
    scheme = replace(matrix.scheme, axis=0, group_size=values.shape[1])
    qparams = choose_qparams(values.amin(1, keepdim=True), values.amax(1, keepdim=True), scheme)
    scale = least_error_scale(values, qparams)
    shape = (*weight.shape[:2], 1)
    return scale.double().view(shape), qparams.zero_point.double().view(shape)
