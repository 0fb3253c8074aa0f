from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.analysis.inputs import batches_of, taken
from fxquant.errors import CalibrationError, InputError

ONE = torch.fx.symbolic_trace(nn.ReLU())


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        return self.fc(x) if mask is None else x * scale


class Both(nn.Module):
    def forward(self, x: Tensor, mask: Any = 2.0) -> Tensor:
        return x * mask


class Starred(nn.Module):
    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0]


def all_of(data: Any, model: Any = ONE, **options: Any) -> list[Any]:
    return list(batches_of(data, model, progress=False, what="compare", **options)[1])


def test_labels_are_left_out() -> None:
    x, label = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    (args, kwargs), *more = all_of([(x, label), (x, label)])
    assert (args, kwargs, len(more)) == ((x,), {}, 1)
    assert all_of([{"input": x, "label": label}]) == [((), {"input": x})]


def test_an_argument_with_a_default_counts_where_the_graph_reads_it() -> None:
    assert taken(fxq.prepare(Masked().eval(), torch.ones(2, 3)).graph_module) == 1
    assert taken(torch.fx.symbolic_trace(Both())) == 2
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("*xs"))
    assert taken(torch.fx.GraphModule(Starred(), graph)) > 100


def test_a_generator_is_read_once_and_no_further_than_asked() -> None:
    read = []

    def generate() -> Iterator[Tensor]:
        for index in range(5):
            read.append(index)
            yield torch.full((2,), float(index))

    found = all_of(generate(), num_batches=3)
    assert [args[0][0].item() for args, _ in found] == [0, 1, 2]
    assert read == [0, 1, 2]


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(CalibrationError, match="there is no data to compare on"):
        all_of([])
    with pytest.raises(InputError, match="num_batches is no number of batches"):
        all_of([torch.ones(2)], num_batches=-1)
    with pytest.raises(InputError, match="must be an iterable of batches"):
        all_of(torch.ones(2))
    with pytest.raises(InputError, match="batch 1 is of the wrong kind"):
        all_of([torch.ones(2), torch.ones(2, dtype=torch.int64)])
