"""A sum whose terms are computed in the ranks that share work, with the bits that it has in one process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fxquant.distributed.sharing import active_ranks


def shared_sum(what: str, count: int, term: Callable[[int], Tensor], like: Tensor) -> Tensor:
    """Return ``term(0) + term(1) + ...``, added up in this order, each term computed in one rank.

    A sum of floats depends on its order. So each rank gets all terms, and adds them up as one process would.

    Args:
        what: What is summed, for messages.
        count: How many terms.
        term: Gives one of them, a tensor of the CPU; what it gives depends on its argument, and on the calls before
            with the same argument.
        like: Has the shape and dtype of a term.

    Raises:
        RankError: a rank does not go on.
    """
    ranks = active_ranks()
    if ranks is None or ranks.size == 1:
        terms = [term(index) for index in range(count)]
    else:
        rows = -(-count // ranks.size)
        own = torch.zeros(rows, *like.shape, dtype=like.dtype)
        for row, index in enumerate(range(ranks.rank, count, ranks.size)):
            own[row] = term(index)
        gathered = ranks.gather_tensor(what, own)
        terms = [gathered[index % ranks.size][index // ranks.size] for index in range(count)]
    total = terms[0].clone()
    for each in terms[1:]:
        total += each
    return total
